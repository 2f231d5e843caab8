# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The log-likelihood of an answer, estimated from below as in LLaDA (https://huggingface.co/papers/2502.09992)."""

from typing import NamedTuple

import torch
from torch.nn.functional import cross_entropy, pad
from transformers import PreTrainedModel


def estimate_log_likelihood(
    model: PreTrainedModel,
    context: list[int],
    answer: list[int],
    mask_token_id: int,
    num_samples: int,
    batch_size: int,
    generator: torch.Generator,
) -> float:
    """Estimates the bound of Eq. 14 and Alg. 3: the mean, over answers of which `l` random tokens are masked, of the
    sum of their log-probabilities times `len(answer) / l`.

    The draws depend on `generator` only, not on `batch_size`. One sample is enough for an answer of one token.
    """
    if model.attention == "causal_past" and len(answer) > model.config.block_length:
        raise ValueError(
            f"{type(model).__name__} fills in masks of one block, and the answer has {len(answer)} tokens. Take tasks "
            f"whose answers have at most {model.config.block_length}, or that generate."
        )

    masked = draw_masks(len(answer), num_samples if len(answer) > 1 else 1, generator)
    total = 0.0
    for part in masked.split(batch_size):
        log_probabilities = masked_log_probabilities(model, context, answer, part, mask_token_id)
        counts = part.sum(dim=1)[part.nonzero()[:, 0]]
        total += (log_probabilities * len(answer) / counts).sum().item()
    return total / len(masked)


def draw_masks(length: int, num_samples: int, generator: torch.Generator) -> torch.BoolTensor:
    """Draws which tokens are masked, `(num_samples, length)`: 1 to `length` of them, evenly from a random start."""
    first = torch.randint(1, length + 1, (), generator=generator)
    steps = torch.arange(num_samples) * length // num_samples
    counts = (first + steps - 1) % length + 1
    ranks = torch.stack([torch.randperm(length, generator=generator) for _ in counts])
    return ranks < counts[:, None]


@torch.no_grad()
def masked_log_probabilities(
    model: PreTrainedModel, context: list[int], answer: list[int], masked: torch.BoolTensor, mask_token_id: int
) -> torch.DoubleTensor:
    """Scores the masked tokens with log-probabilities, `(num_masked,)`, by rows of `masked`, `(rows, len(answer))`."""
    clean = torch.tensor(context + answer, device=model.device).repeat(len(masked), 1)
    masked = pad(masked, (len(context), 0)).to(model.device)

    inputs = {"input_ids": clean.masked_fill(masked, mask_token_id), "attention_mask": torch.ones_like(clean)}
    return model.score(inputs, masked, _token_scores, clean).log_probability.double().cpu()


class _TokenScores(NamedTuple):
    log_probability: torch.Tensor


def _token_scores(logits: torch.Tensor, targets: torch.LongTensor) -> _TokenScores:
    return _TokenScores(-cross_entropy(logits.float(), targets, reduction="none"))
