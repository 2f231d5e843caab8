# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Rows in which the student meets its own guesses, right or wrong (https://huggingface.co/papers/2604.08302)."""

from typing import Any, NamedTuple

import torch
from torch import nn

from ..certainty import measure_certainty
from ..generation.answerer import evaluation_mode
from ..models.scoring import ScoringMixin


class Guesses(NamedTuple):
    """The likeliest token of each position, `(num_positions,)`."""

    tokens: torch.LongTensor


def fill_with_guesses(
    model: ScoringMixin,
    forward: nn.Module,
    inputs: dict[str, Any],
    scored: torch.BoolTensor,
    on_policy: torch.BoolTensor,
    mask_token_id: int,
) -> dict[str, Any]:
    """Replaces the scored masked tokens of the rows `on_policy`, `(rows,)`, by the guesses of the student.

    The guesses come from a pass in evaluation mode, without gradients, over these rows.

    Args:
        model ([`ScoringMixin`]): the student.
        forward (`nn.Module`): the same, as it is wrapped for several processes.
        inputs (`dict[str, Any]`): arguments of the forward pass.
        scored (`torch.BoolTensor` of shape `(rows, length)`): the tokens that have a loss.
        on_policy (`torch.BoolTensor` of shape `(rows,)`): the rows.
        mask_token_id (`int`): the token that is replaced, and never guessed.
    """

    def guess(logits: torch.Tensor, _: torch.LongTensor) -> Guesses:
        return Guesses(measure_certainty(logits, mask_token_id).tokens)

    ids = inputs["input_ids"]
    masked = (ids == mask_token_id) & scored & on_policy[:, None]
    # All processes run the pass, as sharded weights are gathered in it: without such a row over one row, for nothing.
    rows = on_policy.nonzero()[:, 0]
    rows = rows if len(rows) else rows.new_zeros(1)
    shown = {name: value[rows] if torch.is_tensor(value) else value for name, value in inputs.items()}
    with torch.no_grad(), evaluation_mode(forward):
        guesses = model.score(shown, masked[rows], guess, ids[rows], forward=forward).tokens
    return {**inputs, "input_ids": ids.masked_scatter(masked, guesses.to(ids.device))}


__all__ = ["fill_with_guesses"]
