# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The loss of certainty-forcing distillation (https://huggingface.co/papers/2509.26488)."""

import torch

from .objective import IGNORE_INDEX, Objective, RowTerms, mean_by_row


def certainty_forcing_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    *,
    temperature: float = 0.5,
    certainty_weight: float = 2.0,
    consistency_weight: float = 1.0,
) -> torch.Tensor:
    r"""
    Returns the certainty-forcing loss, Eq. 8 of https://huggingface.co/papers/2509.26488, averaged over rows.

    For each row, `consistency_weight` times the mean cross-entropy of the scored tokens, plus `certainty_weight` times
    the mean entropy of the tokens that the model already predicts correctly. A row is one view of a sequence. With
    complementary masking a sequence has two, and its objective is their *sum* (as in the published code): the trainer
    then uses twice this mean.

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
        certainty_weight (`float`, *optional*, defaults to 2.0):
            Weight of the certainty term, β in the paper.
        consistency_weight (`float`, *optional*, defaults to 1.0):
            Weight of the cross-entropy.

    Returns:
        `torch.Tensor`: a float32 scalar, in nats.

    Raises:
        ValueError: if `labels` has another shape or `temperature` is not positive.

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
    if not temperature > 0:
        raise ValueError(f"`temperature` must be positive, got {temperature}. The paper uses temperature=0.5.")

    objective = Objective(temperature, {"consistency": consistency_weight, "certainty": certainty_weight})
    return objective.weigh(row_terms(objective, logits, labels)).mean()


def row_terms(objective: Objective, logits: torch.Tensor, labels: torch.Tensor) -> RowTerms:
    """Returns the terms of the loss of each row, for `logits` and `labels` as in [`certainty_forcing_loss`]."""
    if labels.dim() != 2:
        raise ValueError(f"`labels` must have shape (rows, length), got {tuple(labels.shape)}.")

    scored = labels != IGNORE_INDEX
    if logits.dim() == 3:
        logits = logits[scored]
    return mean_by_row(objective.token_terms(logits, labels[scored]), labels)
