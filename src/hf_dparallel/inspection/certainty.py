# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""How certainty grows over the passes of a decode: the numbers behind the pictures of `plots.py`.

The functions read a [`DiffusionGenerationOutput`] that was made with `output_certainty=True`.
"""

from collections.abc import Sequence

import torch

from ..generation.answerer import Answerer
from ..generation.output import DiffusionGenerationOutput


def mean_confidence(confidences: torch.FloatTensor, num_passes: int) -> torch.FloatTensor:
    """Averages the confidences of a decode over its rows (the paper's Figs. 2b, 6 and 7).

    Args:
        confidences (`torch.FloatTensor` of shape `(batch_size, passes, tokens)`): from [`DiffusionGenerationOutput`]:
            NaN where a token is decided, which keeps the confidence it was decided with.
        num_passes (`int`): how many passes to return; the last one is repeated if the decode took fewer.

    Returns:
        `torch.FloatTensor` of shape `(num_passes, tokens)`.
    """
    kept = [confidences[:, 0]]
    for step in range(1, num_passes):
        current = confidences[:, min(step, confidences.shape[1] - 1)]
        kept.append(torch.where(current.isnan(), kept[-1], current))
    return torch.stack(kept, dim=1).mean(dim=0)


def certainty_of(answerer: Answerer, prompt_ids: Sequence[list[int]]) -> torch.FloatTensor:
    """Decodes up to 64 prompts, and returns the mean confidence of every position over the first 16 passes."""
    out = answerer.with_(output_certainty=True).decode(prompt_ids[:64], "Certainty")
    return mean_confidence(out.confidences, num_passes=16)


def committed_confidence(out: DiffusionGenerationOutput) -> torch.FloatTensor:
    """Returns the mean confidence at which the tokens of each answer were committed, `(batch_size,)` (Fig. 2a)."""
    committed = out.commit_step >= 0
    at_commit = required(out, "confidences").gather(1, out.commit_step.clamp(min=0)[:, None])[:, 0]
    return at_commit.masked_fill(~committed, 0).sum(dim=1) / committed.sum(dim=1)


def required(out: DiffusionGenerationOutput, name: str) -> torch.Tensor:
    """Returns a field of an output that was decoded with `output_certainty=True`, or raises a `ValueError`."""
    values = getattr(out, name)
    if values is None:
        raise ValueError(
            f"`out` has no {name}. Decode with `output_certainty=True` and `return_dict_in_generate=True`."
        )
    return values
