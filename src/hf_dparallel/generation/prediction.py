# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""From the logits of masked positions to the tokens that could be committed there, and how certain they are."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import TopKLogitsWarper, TopPLogitsWarper

from ..certainty import entropy_from_logits


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
    generators: Sequence[torch.Generator | None] | None = None,
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
    """
    logits = logits.float()
    entropy = entropy_from_logits(logits)
    log_normalizer = logits.logsumexp(dim=-1)
    mask_logit = logits[..., mask_token_id].clone()
    candidates = logits.index_fill(-1, torch.tensor(mask_token_id, device=logits.device), -torch.inf)
    sampling = temperature > 0
    tokens = _draw(candidates, temperature, top_k, top_p, generators) if sampling else candidates.argmax(dim=-1)
    confidence = (candidates.gather(-1, tokens[..., None]).squeeze(-1) - log_normalizer).exp()
    prefers_mask = mask_logit > candidates.amax(dim=-1)
    entropy = entropy.masked_fill(prefers_mask, torch.finfo(entropy.dtype).max)
    return TokenPrediction(tokens, confidence, entropy)


def _draw(
    logits: torch.Tensor,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    generators: Sequence[torch.Generator | None] | None,
) -> torch.LongTensor:
    """Draws from softmax(logits / temperature) by the Gumbel-max trick."""
    scores = logits.flatten(0, 1) / temperature
    if top_k is not None:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p is not None:
        scores = TopPLogitsWarper(top_p)(None, scores)
    scores = scores.view_as(logits)
    noise = torch.empty_like(scores)
    if generators is None:
        noise.exponential_()
    else:
        for row, generator in zip(noise, generators, strict=True):
            row.exponential_(generator=generator)
    return (scores - noise.log()).argmax(dim=-1)
