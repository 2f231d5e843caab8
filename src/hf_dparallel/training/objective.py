# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The terms of the loss, of each scored token and of each row, and their averages for the log."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import nn

from hf_dparallel_rules.certainty import entropy_from_logits


# The label of a token that is not scored.
IGNORE_INDEX = -100

# A term that a subclass adds: from logits `(num_scored, vocab_size)` and labels `(num_scored,)`, its value for each
# token and whether the token counts, both `(num_scored,)`. A row has the mean over the tokens that count.
AddedTerm = Callable[[torch.Tensor, torch.LongTensor], tuple[torch.Tensor, torch.Tensor]]


class TokenTerms(NamedTuple):
    """The terms of the loss, one value a scored token.

    `losses` and `counted`, `(num_scored, num_terms)`, are the values of the terms in float32 and nats, and whether the
    token counts for them. The first two are cross-entropy (for all tokens) and entropy at the training temperature
    (for correct predictions). `entropy`, `(num_scored,)`, is at temperature 1.
    """

    losses: torch.Tensor
    counted: torch.Tensor
    entropy: torch.Tensor


class RowTerms(NamedTuple):
    """The terms of the loss, one value a row (a row is one masked view of a sequence).

    `losses`, `(rows, num_terms)`, are means over the tokens that count, or 0 if none does: consistency (Eq. 5),
    certainty (Eqs. 6 and 7) and added terms. `num_masked` and `num_correct`, `(rows,)`, count scored tokens and
    correct predictions, and `entropy` is the mean at temperature 1, which decoding compares with a threshold. These
    three have no gradient.
    """

    losses: torch.Tensor
    num_masked: torch.Tensor
    num_correct: torch.Tensor
    entropy: torch.Tensor


@dataclass(frozen=True)
class Objective:
    """The loss, Eq. 8 of https://huggingface.co/papers/2509.26488: a weighted sum of terms.

    Args:
        temperature (`float`): temperature of the entropy that is minimized, `T` in Eq. 7.
        weights (`dict[str, float]`): weight of each term by its name, "consistency" and "certainty" first.
        added_terms (`dict[str, AddedTerm]`): functions of the further terms in `weights`.
    """

    temperature: float = 0.5
    weights: Mapping[str, float] = field(default_factory=lambda: {"consistency": 1.0, "certainty": 2.0})
    added_terms: Mapping[str, AddedTerm] = field(default_factory=dict)

    def token_terms(self, logits: torch.Tensor, targets: torch.LongTensor) -> TokenTerms:
        """Returns the terms of scored tokens from logits `(num_scored, vocab_size)` and labels `(num_scored,)`."""
        # First, while the backward pass keeps nothing yet.
        with torch.no_grad():
            entropy = entropy_from_logits(logits)

        # The set of correct predictions is a constant: no gradient flows through its choice (Eq. 6).
        correct = logits.argmax(dim=-1) == targets
        losses = [
            nn.functional.cross_entropy(logits.float(), targets, reduction="none"),
            entropy_from_logits(logits, self.temperature),
        ]
        counted = [torch.ones_like(correct), correct]
        for name, function in self.added_terms.items():
            if name in self.weights:
                loss, counts = function(logits, targets)
                losses.append(loss)
                counted.append(counts)

        return TokenTerms(losses=torch.stack(losses, dim=1), counted=torch.stack(counted, dim=1), entropy=entropy)

    def weigh(self, terms: RowTerms) -> torch.Tensor:
        """Returns Eq. 8 for each row, `(rows,)`: the weighted sum of the terms."""
        return sum(weight * loss for weight, loss in zip(self.weights.values(), terms.losses.unbind(1), strict=True))


def mean_by_row(terms: TokenTerms, labels: torch.Tensor, weights: torch.Tensor | None = None) -> RowTerms:
    """Returns the terms of each row of `labels` from the [`TokenTerms`] of all scored tokens, in row-major order.

    With `weights`, of the shape of `labels`, losses are weighted means.
    """
    # A model can be spread over several devices, and end on a different one from the labels.
    losses = terms.losses.to(labels.device)
    counted = terms.counted.to(labels.device)
    entropy = terms.entropy.to(labels.device)
    scored = labels != IGNORE_INDEX
    rows = scored.nonzero()[:, 0]

    def row_sum(values: torch.Tensor) -> torch.Tensor:
        return values.new_zeros(len(labels), *values.shape[1:]).index_add(0, rows, values)

    numbers = row_sum(counted.float())
    # Cross-entropy counts every scored token, and entropy every correct one.
    num_masked = numbers[:, 0]
    num_correct = numbers[:, 1]

    totals = numbers
    if weights is not None:
        counted = counted * weights[scored][:, None]
        totals = row_sum(counted)

    return RowTerms(
        # A sum of 0 has no token that counts.
        losses=row_sum(losses * counted) / totals.clamp(min=1e-9),
        num_masked=num_masked,
        num_correct=num_correct,
        entropy=row_sum(entropy) / num_masked.clamp(min=1),
    )


def log_values(terms: RowTerms, num_views: int) -> torch.Tensor:
    """Returns the values to log, `(sequences, num_terms + 4)`, with the views of each sequence added up.

    After the losses: the sums of the entropy, of the correct and of all scored tokens, and 1 for the sequence itself.
    """
    entropy = terms.entropy * terms.num_masked
    part_of_sequence = torch.full_like(terms.num_masked, 1 / num_views)
    sums = torch.stack([entropy, terms.num_correct, terms.num_masked, part_of_sequence], dim=1)

    by_view = torch.cat([terms.losses.detach(), sums], dim=1)
    return by_view.unflatten(0, (num_views, -1)).sum(dim=0)


def averages(sums: torch.Tensor, names: list[str]) -> dict[str, float]:
    """Returns the averages to log from the sum of [`log_values`] over sequences, for terms of these names."""
    *losses, entropy, num_correct, num_masked, num_sequences = sums.tolist()
    metrics = {f"{name}_loss": loss / num_sequences for name, loss in zip(names, losses, strict=True)}
    metrics["masked_entropy"] = entropy / max(num_masked, 1)
    metrics["masked_accuracy"] = num_correct / max(num_masked, 1)
    return metrics
