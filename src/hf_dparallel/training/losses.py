# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The loss of certainty-forcing distillation (https://huggingface.co/papers/2509.26488)."""

from dataclasses import dataclass

import torch
from torch import nn

from ..certainty import entropy_from_logits


_IGNORED = -100


@dataclass
class CertaintyForcingTerms:
    """The terms of the loss, one value a row (a row is one masked view of a sequence).

    Attributes:
        consistency (`torch.Tensor` of shape `(rows,)`):
            Mean cross-entropy of the scored tokens, in nats (Eq. 5). 0 for a row without scored tokens.
        certainty (`torch.Tensor` of shape `(rows,)`):
            Mean entropy at the training temperature of the scored tokens that the model predicts correctly, in nats
            (Eqs. 6 and 7). 0 for a row without any.
        num_masked (`torch.Tensor` of shape `(rows,)`):
            Number of scored tokens. Detached, like all that follow.
        num_correct (`torch.Tensor` of shape `(rows,)`):
            Number of scored tokens whose argmax is the label.
        entropy (`torch.Tensor` of shape `(rows,)`):
            Mean entropy of the scored tokens at temperature 1, in nats: what decoding compares with its threshold.
    """

    consistency: torch.Tensor
    certainty: torch.Tensor
    num_masked: torch.Tensor
    num_correct: torch.Tensor
    entropy: torch.Tensor

    def objective(self, certainty_weight: float = 2.0, consistency_weight: float = 1.0) -> torch.Tensor:
        """Eq. 8 for every row: the weighted sum of consistency and certainty, of shape `(rows,)`."""
        return consistency_weight * self.consistency + certainty_weight * self.certainty


def certainty_forcing_terms(
    logits: torch.Tensor, labels: torch.Tensor, *, temperature: float = 0.5
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

    Returns:
        [`CertaintyForcingTerms`]

    Raises:
        ValueError: if the shapes do not fit together or `temperature` is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"`temperature` must be positive, got {temperature}. The paper uses temperature=0.5.")
    rows, logits, targets = _select_scored(logits, labels)
    num_rows = labels.shape[0]

    cross_entropy = nn.functional.cross_entropy(logits.float(), targets, reduction="none")
    # The set of correct predictions is a constant: no gradient flows through its choice (Eq. 6).
    correct = logits.detach().argmax(dim=-1) == targets
    sharpened_entropy = entropy_from_logits(logits, temperature)
    num_masked = _sum_rows(torch.ones_like(cross_entropy), rows, num_rows)
    num_correct = _sum_rows(correct.to(cross_entropy.dtype), rows, num_rows)
    with torch.no_grad():
        entropy = _sum_rows(entropy_from_logits(logits), rows, num_rows) / num_masked.clamp(min=1)
    return CertaintyForcingTerms(
        consistency=_sum_rows(cross_entropy, rows, num_rows) / num_masked.clamp(min=1),
        certainty=_sum_rows(sharpened_entropy * correct, rows, num_rows) / num_correct.clamp(min=1),
        num_masked=num_masked,
        num_correct=num_correct,
        entropy=entropy,
    )


def certainty_forcing_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    *,
    temperature: float = 0.5,
    certainty_weight: float = 2.0,
    consistency_weight: float = 1.0,
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
    terms = certainty_forcing_terms(logits, labels, temperature=temperature)
    return terms.objective(certainty_weight, consistency_weight).mean()


def _select_scored(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Row index, logits and label of every scored token, in row-major order."""
    if labels.dim() != 2:
        raise ValueError(f"`labels` must have shape (rows, length), got {tuple(labels.shape)}.")
    rows, positions = (labels != _IGNORED).nonzero(as_tuple=True)
    if logits.dim() == 3 and logits.shape[:2] == labels.shape:
        logits = logits[rows, positions]
    elif logits.dim() != 2 or logits.shape[0] != rows.shape[0]:
        raise ValueError(
            f"`logits` must have shape (rows, length, vocab_size) = ({labels.shape[0]}, {labels.shape[1]}, "
            f"vocab_size), as `labels` has, or (num_scored, vocab_size) = ({rows.shape[0]}, vocab_size), one row for "
            f"each label that is not -100; got {tuple(logits.shape)}. Pass `logits_to_keep=labels != -100` to the "
            "model for the latter."
        )
    return rows, logits, labels[rows, positions]


def _sum_rows(values: torch.Tensor, rows: torch.Tensor, num_rows: int) -> torch.Tensor:
    return values.new_zeros(num_rows).index_add(0, rows, values)


__all__ = ["CertaintyForcingTerms", "certainty_forcing_loss", "certainty_forcing_terms"]
