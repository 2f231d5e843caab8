# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The loss of certainty-forcing distillation (https://huggingface.co/papers/2509.26488)."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from ..certainty import confidence_from_logits, entropy_from_logits


# The label of a token that is not scored.
IGNORE_INDEX = -100
# The probability above which a wrong prediction is penalized, as in WINO+.
OVERCONFIDENT = 0.6


class TokenTerms(NamedTuple):
    """What the loss needs to know of each scored token, in float32.

    Attributes:
        cross_entropy (`torch.FloatTensor` of shape `(num_scored,)`):
            Cross-entropy, in nats.
        sharpened_entropy (`torch.FloatTensor` of shape `(num_scored,)`):
            Entropy at the training temperature, in nats.
        entropy (`torch.FloatTensor` of shape `(num_scored,)`):
            Entropy at temperature 1, in nats. Detached, unless overconfidence is penalized.
        predicted (`torch.LongTensor` of shape `(num_scored,)`):
            The likeliest token.
        overconfident (`torch.BoolTensor` of shape `(num_scored,)`):
            Whether it is wrong and has a probability above `OVERCONFIDENT`. `False` unless that is penalized.
    """

    cross_entropy: torch.Tensor
    sharpened_entropy: torch.Tensor
    entropy: torch.Tensor
    predicted: torch.Tensor
    overconfident: torch.Tensor


@dataclass
class CertaintyForcingTerms:
    """The terms of the loss, one value a row (a row is one masked view of a sequence).

    Attributes:
        consistency (`torch.Tensor` of shape `(rows,)`):
            Mean cross-entropy of the scored tokens, in nats (Eq. 5). 0 for a row without scored tokens.
        certainty (`torch.Tensor` of shape `(rows,)`):
            Mean entropy at the training temperature of the scored tokens that the model predicts correctly, in nats
            (Eqs. 6 and 7). 0 for a row without any.
        overconfidence (`torch.Tensor` of shape `(rows,)`):
            Minus the mean entropy at temperature 1 of the scored tokens that the model predicts wrongly with a
            probability above `OVERCONFIDENT`, in nats. 0 for a row without any, and unless it is penalized.
        num_masked (`torch.Tensor` of shape `(rows,)`):
            Number of scored tokens. Detached, like all that follow.
        num_correct (`torch.Tensor` of shape `(rows,)`):
            Number of scored tokens whose argmax is the label.
        entropy (`torch.Tensor` of shape `(rows,)`):
            Mean entropy of the scored tokens at temperature 1, in nats: what decoding compares with its threshold.
    """

    consistency: torch.Tensor
    certainty: torch.Tensor
    overconfidence: torch.Tensor
    num_masked: torch.Tensor
    num_correct: torch.Tensor
    entropy: torch.Tensor

    def objective(
        self, certainty_weight: float = 2.0, consistency_weight: float = 1.0, overconfidence_weight: float = 0.0
    ) -> torch.Tensor:
        """Eq. 8 for every row, of shape `(rows,)`: the weighted sum of the terms."""
        objective = consistency_weight * self.consistency + certainty_weight * self.certainty
        return objective + overconfidence_weight * self.overconfidence if overconfidence_weight else objective


def certainty_forcing_terms(
    logits: torch.Tensor, labels: torch.Tensor, *, temperature: float = 0.5, penalizes: bool = False
) -> CertaintyForcingTerms:
    r"""
    The terms of the certainty-forcing loss, row by row.

    Everything is computed in float32 whatever the dtype of `logits`. A row in which nothing is scored, or nothing is
    predicted correctly, gives exact zeros that still carry a (zero) gradient.

    Args:
        logits (`torch.Tensor` of shape `(rows, length, vocab_size)` or `(num_scored, vocab_size)`):
            `logits[:, i]` scores token `i`. The second form holds the scored positions alone, in row-major order: what
            a model returns for `logits_to_keep=labels != -100`.
        labels (`torch.LongTensor` of shape `(rows, length)`):
            The clean tokens where they are scored, -100 elsewhere.
        temperature (`float`, *optional*, defaults to 0.5):
            Temperature of the certainty term, `T` in Eq. 7. The prediction itself does not depend on it.
        penalizes (`bool`, *optional*, defaults to `False`):
            Whether `overconfidence` is computed, which takes memory.

    Returns:
        [`CertaintyForcingTerms`]

    Raises:
        ValueError: if the shapes do not fit together or `temperature` is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"`temperature` must be positive, got {temperature}. The paper uses temperature=0.5.")
    logits, targets = _select_scored(logits, labels)
    return sum_by_row(token_terms(logits, targets, temperature, penalizes), labels)


def token_terms(
    logits: torch.Tensor, targets: torch.Tensor, temperature: float, penalizes: bool = False
) -> TokenTerms:
    """Computes the terms of scored tokens from their logits `(num_scored, vocab_size)` and labels `(num_scored,)`."""
    with torch.set_grad_enabled(penalizes and torch.is_grad_enabled()):
        entropy = entropy_from_logits(logits)
    predicted = logits.argmax(dim=-1)
    overconfident = torch.zeros_like(predicted, dtype=torch.bool)
    if penalizes:
        overconfident = (predicted != targets) & (confidence_from_logits(logits.detach()) > OVERCONFIDENT)
    return TokenTerms(
        nn.functional.cross_entropy(logits.float(), targets, reduction="none"),
        entropy_from_logits(logits, temperature),
        entropy,
        predicted,
        overconfident,
    )


def sum_by_row(terms: TokenTerms, labels: torch.Tensor) -> CertaintyForcingTerms:
    """Puts the [`token_terms`] of all scored tokens, in row-major order, together by row of `labels`."""
    if terms.cross_entropy.dtype != torch.float32:
        raise ValueError(
            f"`terms` must be float32, got {terms.cross_entropy.dtype}: something between the model and its loss "
            "rounds what the model returns. With FSDP2, set `output_dtype=torch.float32` in its mixed-precision "
            "policy."
        )
    # A model can be spread over several devices, and end on another one than that of the labels.
    cross_entropy, sharpened_entropy, entropy, predicted, overconfident = (field.to(labels.device) for field in terms)
    rows, positions = (labels != IGNORE_INDEX).nonzero(as_tuple=True)
    # The set of correct predictions is a constant: no gradient flows through its choice (Eq. 6).
    correct = (predicted == labels[rows, positions]).float()

    def row_sum(values: torch.Tensor) -> torch.Tensor:
        return values.new_zeros(len(labels)).index_add(0, rows, values)

    num_masked, num_correct = row_sum(torch.ones_like(correct)), row_sum(correct)
    return CertaintyForcingTerms(
        consistency=row_sum(cross_entropy) / num_masked.clamp(min=1),
        certainty=row_sum(sharpened_entropy * correct) / num_correct.clamp(min=1),
        overconfidence=-row_sum(entropy * overconfident) / row_sum(overconfident.float()).clamp(min=1),
        num_masked=num_masked,
        num_correct=num_correct,
        entropy=row_sum(entropy.detach()) / num_masked.clamp(min=1),
    )


def certainty_forcing_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    *,
    temperature: float = 0.5,
    certainty_weight: float = 2.0,
    consistency_weight: float = 1.0,
    overconfidence_weight: float = 0.0,
) -> torch.Tensor:
    r"""
    The certainty-forcing loss, Eq. 8 of https://huggingface.co/papers/2509.26488, averaged over rows.

    For each row, `consistency_weight` times the mean cross-entropy of the scored tokens, plus `certainty_weight` times
    the mean entropy of those that the model already predicts correctly. Every row counts the same, however many of its
    tokens are scored.

    A row is one view of a sequence. With complementary masking a sequence has two, and its objective is their *sum*
    (as in the published code): the trainer then uses twice this mean.

    Args:
        logits (`torch.Tensor` of shape `(rows, length, vocab_size)` or `(num_scored, vocab_size)`):
            See [`certainty_forcing_terms`].
        labels (`torch.LongTensor` of shape `(rows, length)`):
            The clean tokens where they are scored, -100 elsewhere.
        temperature (`float`, *optional*, defaults to 0.5):
            Temperature of the certainty term.
        certainty_weight (`float`, *optional*, defaults to 2.0):
            Weight of the certainty term, β in the paper.
        consistency_weight (`float`, *optional*, defaults to 1.0):
            Weight of the cross-entropy.
        overconfidence_weight (`float`, *optional*, defaults to 0.0):
            Weight of the entropy of wrong predictions of more than 0.6, which is raised
            (https://huggingface.co/papers/2605.16941).

    Returns:
        `torch.Tensor`: a float32 scalar, in nats.

    Raises:
        ValueError: if the shapes do not fit together or `temperature` is not positive.

    Example:

    ```python
    >>> import torch
    >>> from hf_dparallel.training.losses import certainty_forcing_loss

    >>> logits = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]])
    >>> labels = torch.tensor([[0, -100]])
    >>> certainty_forcing_loss(logits, labels)
    tensor(0.3071)

    ```
    """
    terms = certainty_forcing_terms(logits, labels, temperature=temperature, penalizes=overconfidence_weight > 0)
    return terms.objective(certainty_weight, consistency_weight, overconfidence_weight).mean()


def _select_scored(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and label of every scored token, in row-major order."""
    if labels.dim() != 2:
        raise ValueError(f"`labels` must have shape (rows, length), got {tuple(labels.shape)}.")
    scored = labels != IGNORE_INDEX
    targets = labels[scored]
    if logits.dim() == 3 and logits.shape[:2] == labels.shape:
        logits = logits[scored]
    elif logits.dim() != 2 or len(logits) != len(targets):
        raise ValueError(
            f"`logits` must have shape (rows, length, vocab_size) = ({labels.shape[0]}, {labels.shape[1]}, "
            f"vocab_size), as `labels` has, or (num_scored, vocab_size) = ({len(targets)}, vocab_size), one row for "
            f"each label that is not -100; got {tuple(logits.shape)}. Pass `logits_to_keep=labels != -100` to the "
            "model for the latter."
        )
    return logits, targets


__all__ = [
    "IGNORE_INDEX",
    "CertaintyForcingTerms",
    "TokenTerms",
    "certainty_forcing_loss",
    "certainty_forcing_terms",
    "sum_by_row",
    "token_terms",
]
