# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What [`CertaintyForcingTrainer`] logs besides the loss."""

from collections.abc import Callable, Sequence

import torch

from .terms import CertaintyForcingTerms


class MetricSums:
    """Sums over sequences of the terms of the loss, by name, and of tokens; on the device until they are logged."""

    def __init__(self, device: torch.device, losses: Sequence[str]):
        self._losses = list(losses)
        self._sums = torch.zeros(len(self._losses) + 4, device=device)

    @staticmethod
    def values_by_sequence(terms: CertaintyForcingTerms, num_views: int) -> torch.Tensor:
        """The summands, of shape `(sequences, num_metrics)`, the views of a sequence added up."""
        by_view = (
            *terms.losses,
            terms.entropy * terms.num_masked,
            terms.num_correct,
            terms.num_masked,
            torch.full_like(terms.num_masked, 1 / num_views),
        )
        return torch.stack([value.detach() for value in by_view], dim=-1).unflatten(0, (num_views, -1)).sum(dim=0)

    def add(self, values: torch.Tensor) -> None:
        self._sums += values.sum(dim=0)

    def drain(self, reduce: Callable[[torch.Tensor], torch.Tensor] = lambda sums: sums) -> dict[str, float]:
        """The averages since the last call (of all processes, if `reduce` adds them up); none without sequences."""
        *losses, entropy, num_correct, num_masked, num_sequences = reduce(self._sums).tolist()
        self._sums = torch.zeros_like(self._sums)
        if num_sequences == 0:
            return {}
        return {
            **{f"{name}_loss": loss / num_sequences for name, loss in zip(self._losses, losses, strict=True)},
            "masked_entropy": entropy / max(num_masked, 1),
            "masked_accuracy": num_correct / max(num_masked, 1),
        }
