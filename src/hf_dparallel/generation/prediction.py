# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""From the logits of masked positions to the tokens that could be committed there, and how certain they are."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import TopKLogitsWarper, TopPLogitsWarper


# Logits scored at a time. On a CPU, what fits into its cache; elsewhere, what bounds the memory (1 GB in fp32).
_CHUNK_NUMEL_CPU = 2**20
_CHUNK_NUMEL = 2**27


@dataclass
class TokenPrediction:
    """A candidate token per position, the probability of that token and the entropy (nats), each `(rows, tokens)`."""

    tokens: torch.LongTensor
    confidence: torch.FloatTensor
    entropy: torch.FloatTensor


def predict_tokens(
    logits: torch.Tensor,
    mask_token_id: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generators: Sequence[torch.Generator] | None = None,
    num_drawn: Sequence[int] | None = None,
) -> TokenPrediction:
    """Picks a token per position and measures its certainty at temperature 1 over the full vocabulary, in fp32.

    The mask token is never picked. Where the model prefers it to every other token it predicts that nothing can be
    said yet: the entropy of such a position counts as infinite. Its confidence is the probability of the token that is
    picked, which is small by itself.

    Args:
        logits (`torch.Tensor` of shape `(rows, tokens, vocab_size)`): raw scores.
        mask_token_id (`int`): the token that is never picked.
        temperature (`float`): 0 for the likeliest token, else the temperature of the draw.
        top_k, top_p: restrict the draw, as in transformers.
        generators (`Sequence[torch.Generator]`, *optional*): one a row, for draws that do not depend on the batch.
        num_drawn (`Sequence[int]`, *optional*): how many positions of each row are drawn for, the first ones; by
            default all. The others use up no random numbers.
    """
    drawn = None
    if temperature > 0:
        noise = _exponential_noise(logits, generators, num_drawn)
        drawn = _draw(logits, mask_token_id, temperature, top_k, top_p, noise).flatten()
    flat = logits.flatten(0, 1)
    chunk = max(1, (_CHUNK_NUMEL_CPU if logits.device.type == "cpu" else _CHUNK_NUMEL) // logits.shape[-1])
    parts = [
        _score(flat[start : start + chunk], mask_token_id, None if drawn is None else drawn[start : start + chunk])
        for start in range(0, len(flat), chunk)
    ]
    tokens, confidence, entropy = (torch.cat(part).view(logits.shape[:-1]) for part in zip(*parts, strict=True))
    return TokenPrediction(tokens, confidence, entropy)


def _score(
    logits: torch.Tensor, mask_token_id: int, drawn: torch.LongTensor | None
) -> tuple[torch.LongTensor, torch.Tensor, torch.Tensor]:
    """Likeliest (or drawn) token, its probability, and the entropy, of logits `(tokens, vocab_size)`.

    With z the logits less their maximum, the entropy is log sum exp(z) - sum z exp(z) / sum exp(z).
    """
    shifted = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    mask_logit = shifted[:, mask_token_id].clone()
    shifted[:, mask_token_id] = -torch.inf
    best, tokens = shifted.max(dim=-1)
    prefers_mask = mask_logit > best
    highest = torch.maximum(best, mask_logit)
    shifted[:, mask_token_id] = mask_logit
    # A token of probability zero adds nothing, where -inf * 0 would add NaN.
    shifted.sub_(highest[:, None]).clamp_(min=-1e4)
    if drawn is not None:
        tokens = drawn
    chosen = shifted.gather(1, tokens[:, None]).squeeze(1)
    weights = shifted.exp()
    total = weights.sum(dim=-1)
    # Rounding must not make it negative: a certain prediction passes every threshold.
    entropy = (total.log() - torch.linalg.vecdot(weights, shifted) / total).clamp(min=0)
    return tokens, chosen.exp() / total, entropy.masked_fill(prefers_mask, torch.finfo(entropy.dtype).max)


def _draw(
    logits: torch.Tensor,
    mask_token_id: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    noise: torch.Tensor,
) -> torch.LongTensor:
    """Draws from softmax(logits / temperature) by the Gumbel-max trick."""
    candidates = logits.float().index_fill(-1, torch.tensor(mask_token_id, device=logits.device), -torch.inf)
    # Less the largest, so that no division by a small temperature overflows.
    scores = (candidates - candidates.amax(dim=-1, keepdim=True)).flatten(0, 1) / temperature
    if top_k is not None:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p is not None:
        scores = TopPLogitsWarper(top_p)(None, scores)
    return (scores.view_as(logits) - noise.log()).argmax(dim=-1)


def _exponential_noise(
    logits: torch.Tensor, generators: Sequence[torch.Generator] | None, num_drawn: Sequence[int] | None
) -> torch.Tensor:
    noise = torch.ones_like(logits, dtype=torch.float32)
    if generators is None:
        return noise.exponential_()
    counts = num_drawn if num_drawn is not None else [logits.shape[1]] * len(logits)
    for row, generator, count in zip(noise, generators, counts, strict=True):
        row[:count].exponential_(generator=generator)
    return noise
