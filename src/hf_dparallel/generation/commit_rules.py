# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Which masked tokens to commit in a pass: pure functions from certainty to a boolean mask.

Each takes a measure of certainty and `masked`, which of the tokens may be committed, both `(rows, tokens)`, and
returns the tokens to commit, `(rows, tokens)`. Every rule commits at least the most certain masked token of each row
that has one, so that decoding always ends.
"""

import torch


def commit_by_entropy(entropy: torch.Tensor, masked: torch.Tensor, threshold: float) -> torch.Tensor:
    """Commits the tokens of at most `threshold` nats (https://huggingface.co/papers/2509.26488)."""
    return masked & ((entropy <= threshold) | _most_certain(-entropy, masked))


def commit_by_confidence(confidence: torch.Tensor, masked: torch.Tensor, threshold: float) -> torch.Tensor:
    """Commits the tokens of at least probability `threshold` (https://huggingface.co/papers/2505.22618)."""
    return masked & ((confidence >= threshold) | _most_certain(confidence, masked))


def commit_by_count(confidence: torch.Tensor, masked: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Commits the `count` most confident tokens of each row, `count` of shape `(rows,)`."""
    order = confidence.masked_fill(~masked, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(
        -1, order, torch.arange(order.shape[-1], device=order.device).expand_as(order)
    )
    return masked & (rank < count[:, None])


def commit_by_entropy_bound(entropy: torch.Tensor, masked: torch.Tensor, bound: float) -> torch.Tensor:
    """Commits the most certain tokens as long as what they may depend on one another stays within `bound` nats.

    The joint entropy of a set of tokens differs from the sum of theirs by at most that sum less the largest of them:
    the EB-sampler (https://huggingface.co/papers/2505.24857) takes the largest set, in the order of entropy, for which
    this is within the bound.
    """
    ascending, order = entropy.masked_fill(~masked, torch.inf).sort(dim=-1, stable=True)
    # In ascending order the largest is the last, so what counts is the sum of those before it.
    before = torch.nn.functional.pad(ascending.cumsum(dim=-1)[..., :-1], (1, 0))
    within = torch.zeros_like(masked).scatter_(-1, order, before <= bound)
    return masked & (within | _most_certain(-entropy, masked))


def commit_by_confidence_factor(confidence: torch.Tensor, masked: torch.Tensor, factor: float) -> torch.Tensor:
    """Commits the `n` most confident tokens, `n` being the largest number with `(n + 1) * (1 - c_n) < factor`.

    `c_n` is the n-th largest confidence: the more tokens at once, the more confident must the last one be
    (https://huggingface.co/papers/2505.22618, Theorem 1).
    """
    descending, order = confidence.masked_fill(~masked, -torch.inf).sort(dim=-1, descending=True, stable=True)
    count = torch.arange(1, confidence.shape[-1] + 1, device=confidence.device)
    # Both sides of the product grow with n: where it holds, it holds for every smaller n.
    within = torch.zeros_like(masked).scatter_(-1, order, (count + 1) * (1 - descending) < factor)
    return masked & (within | _most_certain(confidence, masked))


def scheduled_count(block_length: int, steps_per_block: int, step: torch.Tensor) -> torch.Tensor:
    """Returns how many tokens to commit at each row's `step` of its block.

    `block_length` tokens are spread evenly over `steps_per_block` passes, the remainder over the first ones
    (https://huggingface.co/papers/2502.09992).
    """
    return block_length // steps_per_block + (step < block_length % steps_per_block).long()


def _most_certain(certainty: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
    best = certainty.masked_fill(~masked, -torch.inf).argmax(dim=-1, keepdim=True)
    return torch.zeros_like(masked).scatter_(-1, best, True)
