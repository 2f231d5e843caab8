# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""How certain a model is of a token: the one definition of entropy and confidence, for the loss and for decoding."""

import torch


def entropy_from_logits(logits: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    r"""
    Entropy of `softmax(logits / temperature)`, in nats.

    Computed in float32 whatever the dtype of `logits`, and differentiable. A logit of `-inf` has probability zero and
    adds nothing (`0 * log 0 = 0`), neither to the entropy nor to its gradient.

    Args:
        logits (`torch.Tensor` of shape `(..., vocab_size)`):
            Unnormalized scores.
        temperature (`float`, *optional*, defaults to 1.0):
            Divides the logits. Below 1 the distribution is sharper and the entropy smaller.

    Returns:
        `torch.Tensor` of shape `(...)`, float32, between 0 and `log(vocab_size)`.

    Example:

    ```python
    >>> import torch
    >>> from hf_dparallel.certainty import entropy_from_logits

    >>> entropy_from_logits(torch.tensor([[0.0, 0.0], [0.0, float("-inf")]]))
    tensor([0.6931, 0.0000])

    ```
    """
    if temperature == 1.0:
        # The dtype argument converts inside the kernel, without a float32 copy of the logits.
        log_probs = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    else:
        log_probs = torch.log_softmax(logits.float() / temperature, dim=-1)
    probs = log_probs.exp()
    # 0 * -inf would be NaN; with a finite factor the product is 0, and the clamp stops the gradient there.
    # (Subtracting from zero rather than negating: the entropy of a certain prediction is 0, not -0.)
    return 0.0 - (probs * log_probs.clamp(min=torch.finfo(torch.float32).min)).sum(dim=-1)


def confidence_from_logits(logits: torch.Tensor) -> torch.Tensor:
    r"""
    Probability of the most likely token, computed in float32 whatever the dtype of `logits`.

    Args:
        logits (`torch.Tensor` of shape `(..., vocab_size)`):
            Unnormalized scores.

    Returns:
        `torch.Tensor` of shape `(...)`, float32, between `1 / vocab_size` and 1.

    Example:

    ```python
    >>> import torch
    >>> from hf_dparallel.certainty import confidence_from_logits

    >>> confidence_from_logits(torch.tensor([[0.0, 0.0], [0.0, float("-inf")]]))
    tensor([0.5000, 1.0000])

    ```
    """
    return torch.softmax(logits, dim=-1, dtype=torch.float32).amax(dim=-1)


__all__ = ["confidence_from_logits", "entropy_from_logits"]
