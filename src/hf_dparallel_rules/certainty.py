# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""How certain a model is of a token: the one definition of entropy and confidence, for the loss and for decoding."""

from dataclasses import dataclass
from itertools import repeat

import torch


# Logits measured at a time: on a CPU they fit into its cache, elsewhere they bound the memory (0.5 GB a copy).
_CHUNK_NUMEL_CPU = 2**19
_CHUNK_NUMEL = 2**27


@dataclass
class TokenPrediction:
    """A token at each place, its probability and the entropy (nats) there, each `(...)`, and the scores.

    In decoding, places are `(rows, tokens)`, and it also has their columns of the canvas, and which of these are masks
    of the open blocks (`masked`) or, if a hook revises, decided tokens there (`revisable`).
    """

    tokens: torch.LongTensor
    confidence: torch.FloatTensor
    entropy: torch.FloatTensor
    # (..., vocab_size)
    logits: torch.Tensor
    columns: torch.LongTensor = None
    masked: torch.BoolTensor = None
    revisable: torch.BoolTensor = None

    @property
    def is_nan(self) -> torch.BoolTensor:
        """Returns where the scores are NaN, or none is the largest."""
        return self.entropy.isnan()


class LikeliestTokens(TokenPrediction):
    """The likeliest token of each position, except the mask token. Its certainty is measured when it is asked for."""

    def __init__(self, logits: torch.Tensor, mask_token_id: int):
        self.logits = logits
        self.mask_token_id = mask_token_id
        self.best, self.tokens = _likeliest(logits, mask_token_id)

    def __getattr__(self, name: str) -> torch.Tensor:
        if name not in ("confidence", "entropy"):
            raise AttributeError(name)
        measured = measure_certainty(self.logits, self.mask_token_id, self.tokens)
        self.confidence = measured.confidence
        self.entropy = measured.entropy
        return getattr(self, name)

    @property
    def is_nan(self) -> torch.BoolTensor:
        """Overrides [`TokenPrediction.is_nan`] by the largest score, without the certainty."""
        return ~self.best.isfinite()


def entropy_from_logits(logits: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    r"""
    Computes the entropy of `softmax(logits / temperature)`, in nats.

    A logit of `-inf` has probability zero and adds nothing (`0 * log 0 = 0`), neither to the entropy nor to its
    gradient.

    Args:
        logits (`torch.Tensor` of shape `(..., vocab_size)`): unnormalized scores.
        temperature (`float`, *optional*, defaults to 1.0): divides the logits.

    Returns:
        `torch.Tensor` of shape `(...)`, float32, between 0 and `log(vocab_size)`.
    """
    # The dtype argument converts inside the kernel, without a float32 copy of the logits.
    scaled = logits if temperature == 1.0 else logits.float() / temperature
    log_probs = torch.log_softmax(scaled, dim=-1, dtype=torch.float32)
    # 0 * -inf would be NaN; with a finite factor the product is 0, and the clamp stops the gradient there.
    # A difference, because the negative of 0 is -0.
    return 0.0 - (log_probs.exp() * log_probs.clamp(min=torch.finfo(torch.float32).min)).sum(dim=-1)


def measure_certainty(
    logits: torch.Tensor, mask_token_id: int, tokens: torch.LongTensor | None = None
) -> TokenPrediction:
    """Picks the likeliest token of each position, except the mask token, and measures its certainty.

    The mask token is never picked, but is part of the distribution. If the model prefers it to every other token, the
    model cannot decide the position yet, and its entropy counts as infinite. (Its confidence, the probability of the
    picked token, is small anyway.)

    `logits`, `(..., vocab_size)`, are used as a scratch space and left as they were. With `tokens`, `(...)`, their
    confidence is measured instead of the likeliest tokens'. All is in float32 or, for float64 logits, in float64.
    """
    # Contiguous, because several places of an expanded tensor share their memory.
    flat = logits.flatten(0, -2).contiguous()
    numel = _CHUNK_NUMEL_CPU if logits.device.type == "cpu" else _CHUNK_NUMEL
    size = max(1, numel // logits.shape[-1])
    given = repeat(None) if tokens is None else tokens.flatten().split(size)
    chunks = [_measure(mask_token_id, *of_places) for of_places in zip(flat.split(size), given, strict=False)]

    measures = chunks[0] if len(chunks) == 1 else [torch.cat(each) for each in zip(*chunks, strict=True)]
    tokens, confidence, entropy = (measure.view(logits.shape[:-1]) for measure in measures)
    return TokenPrediction(tokens=tokens, confidence=confidence, entropy=entropy, logits=logits)


def _likeliest(logits: torch.Tensor, mask_token_id: int) -> tuple[torch.Tensor, torch.LongTensor]:
    """Returns the largest score at each place, without the mask token's, and whose it is."""
    of_mask = logits[..., mask_token_id].clone()
    logits[..., mask_token_id] = -torch.inf
    best, tokens = logits.max(dim=-1)
    logits[..., mask_token_id] = of_mask
    return best, tokens


def _measure(
    mask_token_id: int, logits: torch.Tensor, tokens: torch.LongTensor | None
) -> tuple[torch.LongTensor, torch.Tensor, torch.Tensor]:
    of_mask = logits[:, mask_token_id]
    best, likeliest = _likeliest(logits, mask_token_id)
    if tokens is None:
        tokens = likeliest

    dtype = torch.promote_types(logits.dtype, torch.float32)
    if logits.device.type == "cpu":
        # With one exponential. torch's softmax sums a long row less exactly on CPUs.
        shifted = logits.to(dtype) - torch.maximum(best, of_mask).to(dtype)[:, None]
        weights = shifted.exp()
        total = weights.sum(dim=-1)
        confidence = weights.gather(1, tokens[:, None]).squeeze(1) / total
        # The logarithm of probability zero is infinite, and adds nothing.
        mean = weights.mul_(shifted.clamp_(min=torch.finfo(dtype).min)).sum(dim=-1) / total
        entropy = total.log() - mean
    else:
        weights = torch.softmax(logits, dim=-1, dtype=dtype)
        confidence = weights.gather(1, tokens[:, None]).squeeze(1)
        entropy = torch.special.entr(weights).sum(dim=-1)

    return tokens, confidence, entropy.masked_fill(of_mask > best, torch.inf)
