# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The terms of the loss: of each scored token, and of each row."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from ..certainty import entropy_from_logits


# The label of a token that is not scored.
IGNORE_INDEX = -100

# A term that a variant adds: for logits `(num_scored, vocab_size)` and labels `(num_scored,)` its value for each token
# and whether the token counts, both `(num_scored,)`. A row has the mean over the tokens that count.
AddedTerm = Callable[[torch.Tensor, torch.LongTensor], tuple[torch.Tensor, torch.Tensor]]


class TokenTerms(NamedTuple):
    """What the loss needs to know of each scored token, in float32 and nats, each `(num_scored,)`.

    `sharpened_entropy` is at the training temperature, `entropy` at temperature 1 and detached. `added` and `counted`,
    `(num_scored, num_terms)`, are the values of the terms that variants add, and whether the token counts for them.
    """

    cross_entropy: torch.Tensor
    sharpened_entropy: torch.Tensor
    entropy: torch.Tensor
    predicted: torch.Tensor
    added: torch.Tensor
    counted: torch.Tensor


@dataclass
class CertaintyForcingTerms:
    """The terms of the loss, one value a row (a row is one masked view of a sequence), each `(rows,)`.

    Attributes:
        consistency: mean cross-entropy of the scored tokens, in nats (Eq. 5). 0 for a row without scored tokens.
        certainty: mean entropy at the training temperature of the scored tokens that the model predicts correctly, in
            nats (Eqs. 6 and 7). 0 for a row without any.
        num_masked: number of scored tokens. Detached, like `num_correct` and `entropy`.
        num_correct: number of scored tokens whose argmax is the label.
        entropy: mean entropy of the scored tokens at temperature 1, in nats, which decoding compares with a threshold.
        added: the terms that variants add, `(rows, num_terms)`: means over the tokens that count, or 0.
    """

    consistency: torch.Tensor
    certainty: torch.Tensor
    num_masked: torch.Tensor
    num_correct: torch.Tensor
    entropy: torch.Tensor
    added: torch.Tensor

    @property
    def losses(self) -> tuple[torch.Tensor, ...]:
        """The terms of the loss, each `(rows,)`: consistency, certainty and what variants add."""
        return (self.consistency, self.certainty, *self.added.unbind(dim=1))


def token_terms(
    logits: torch.Tensor, targets: torch.LongTensor, temperature: float, added: Iterable[AddedTerm] = ()
) -> TokenTerms:
    """Computes the terms of scored tokens from their logits `(num_scored, vocab_size)` and labels `(num_scored,)`."""
    columns = [function(logits, targets) for function in added]
    none = logits.new_zeros(len(logits), 0, dtype=torch.float32)
    with torch.no_grad():
        entropy = entropy_from_logits(logits)
    return TokenTerms(
        nn.functional.cross_entropy(logits.float(), targets, reduction="none"),
        entropy_from_logits(logits, temperature),
        entropy,
        logits.argmax(dim=-1),
        torch.cat([none, *(values[:, None] for values, _ in columns)], dim=1),
        torch.cat([none.bool(), *(counted[:, None] for _, counted in columns)], dim=1),
    )


def sum_by_row(terms: TokenTerms, labels: torch.Tensor) -> CertaintyForcingTerms:
    """Puts the [`token_terms`] of all scored tokens, in row-major order, together by row of `labels`."""
    if terms.cross_entropy.dtype != torch.float32:
        raise ValueError(
            f"`terms` must be float32, got {terms.cross_entropy.dtype}: something between the model and its loss "
            "rounds what the model returns. With FSDP2, set `output_dtype=torch.float32` in its mixed-precision "
            "policy."
        )
    # A model can be spread over several devices, and end on another one than the labels.
    terms = TokenTerms(*(column.to(labels.device) for column in terms))
    rows, positions = (labels != IGNORE_INDEX).nonzero(as_tuple=True)
    # The set of correct predictions is a constant: no gradient flows through its choice (Eq. 6).
    correct = (terms.predicted == labels[rows, positions]).float()

    def row_sum(values: torch.Tensor) -> torch.Tensor:
        return values.new_zeros(len(labels), *values.shape[1:]).index_add(0, rows, values)

    num_masked, num_correct = row_sum(torch.ones_like(correct)), row_sum(correct)
    return CertaintyForcingTerms(
        consistency=row_sum(terms.cross_entropy) / num_masked.clamp(min=1),
        certainty=row_sum(terms.sharpened_entropy * correct) / num_correct.clamp(min=1),
        num_masked=num_masked,
        num_correct=num_correct,
        entropy=row_sum(terms.entropy) / num_masked.clamp(min=1),
        added=row_sum(terms.added * terms.counted) / row_sum(terms.counted.float()).clamp(min=1),
    )
