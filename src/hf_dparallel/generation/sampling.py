# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Samples tokens from the logits of masked positions."""

from collections.abc import Sequence

import torch
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper


def sample_tokens(
    logits: torch.Tensor,
    noise: torch.Tensor,
    mask_token_id: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
) -> torch.LongTensor:
    """Samples a token at each place by exponential `noise`, of the shape of the logits; never the mask token."""
    candidates = logits.to(torch.float32, copy=True)
    candidates[..., mask_token_id] = -torch.inf
    # Subtract the largest, so that no division by a small temperature overflows.
    scores = candidates.sub_(candidates.amax(dim=-1, keepdim=True)).flatten(0, 1).div_(temperature)
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(None, scores)
    if min_p:
        scores = MinPLogitsWarper(min_p)(None, scores)
    # The Gumbel-max trick, as in `torch.multinomial`.
    return scores.exp_().view_as(logits).div_(noise).argmax(dim=-1)


def exponential_noise(
    logits: torch.Tensor, generators: Sequence[torch.Generator], num_sampled: Sequence[int]
) -> torch.Tensor:
    """Draws the noise of sampling. With `generators`, one a row, the draws do not depend on the batch.

    In each row the first `num_sampled` places are sampled; the others draw no random numbers.
    """
    noise = torch.ones_like(logits, dtype=torch.float32)
    if not generators:
        # Lines after the rows draw nothing.
        noise[: len(num_sampled) or None].exponential_()
        return noise
    for row, generator, count in zip(noise, generators, num_sampled, strict=False):
        row[:count].exponential_(generator=generator)
    return noise
