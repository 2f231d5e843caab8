# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""From the logits of masked positions to the tokens that could be committed there, and how certain they are."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import TopKLogitsWarper, TopPLogitsWarper

from ..certainty import Certainty, measure_certainty


@dataclass
class TokenPrediction(Certainty):
    """A candidate token per position, its probability and the entropy (nats), each `(rows, tokens)`.

    Args:
        logits (`torch.Tensor` of shape `(rows, tokens, vocab_size)`): the scores that this was predicted from.
        columns (`torch.LongTensor` of shape `(rows, tokens)`, *optional*): the columns of the canvas.
    """

    logits: torch.Tensor
    columns: torch.LongTensor = None


def predict_tokens(
    logits: torch.Tensor,
    mask_token_id: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generators: Sequence[torch.Generator] | None = None,
    num_sampled: Sequence[int] | None = None,
    columns: torch.LongTensor | None = None,
) -> TokenPrediction:
    """Picks a token per position and measures its certainty at temperature 1 over the full vocabulary.

    Args:
        logits (`torch.Tensor` of shape `(rows, tokens, vocab_size)`): raw scores.
        mask_token_id (`int`): the token that is never picked.
        temperature (`float`): 0 for the likeliest token, else the temperature to sample at.
        top_k, top_p: restrict the sampling, as in transformers.
        generators (`Sequence[torch.Generator]`, *optional*): one a row, for samples that do not depend on the batch.
        num_sampled (`Sequence[int]`, *optional*): how many positions of each row are sampled, the first ones; by
            default all. The others use up no random numbers.
        columns (`torch.LongTensor` of shape `(rows, tokens)`, *optional*): where on the canvas they are.
    """
    sampled = None
    if temperature > 0:
        noise = _exponential_noise(logits, generators, num_sampled)
        sampled = _sample(logits, mask_token_id, temperature, top_k, top_p, noise)
    return TokenPrediction(**vars(measure_certainty(logits, mask_token_id, sampled)), logits=logits, columns=columns)


def _sample(
    logits: torch.Tensor,
    mask_token_id: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    noise: torch.Tensor,
) -> torch.LongTensor:
    """Samples from softmax(logits / temperature) by the Gumbel-max trick."""
    candidates = logits.to(torch.float32, copy=True)
    candidates[..., mask_token_id] = -torch.inf
    # Less the largest, so that no division by a small temperature overflows.
    scores = (candidates - candidates.amax(dim=-1, keepdim=True)).flatten(0, 1) / temperature
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p not in (None, 1.0):
        scores = TopPLogitsWarper(top_p)(None, scores)
    return (scores.view_as(logits) - noise.log()).argmax(dim=-1)


def _exponential_noise(
    logits: torch.Tensor, generators: Sequence[torch.Generator] | None, num_sampled: Sequence[int] | None
) -> torch.Tensor:
    noise = torch.ones_like(logits, dtype=torch.float32)
    if generators is None:
        return noise.exponential_()
    counts = num_sampled if num_sampled is not None else [logits.shape[1]] * len(logits)
    for row, generator, count in zip(noise, generators, counts, strict=True):
        row[:count].exponential_(generator=generator)
    return noise
