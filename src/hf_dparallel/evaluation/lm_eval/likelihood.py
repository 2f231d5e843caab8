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

    The draws depend on `generator` only, not on `batch_size`.
    All masked answers of one token are the same, so there one sample is enough.

    Raises a `ValueError` if the past of the model is causal and the answer longer than its open block.
    """
    if model.attention == "causal_past" and len(answer) > model.block_length:
        raise ValueError(
            f"{type(model).__name__} fills in masks of one block, and the answer has {len(answer)} tokens. Take tasks "
            f"whose answers have at most {model.block_length}, or that generate."
        )
    counts = masked_counts(len(answer), num_samples if len(answer) > 1 else 1, generator)
    masked = mask_answers(len(answer), counts, generator)
    total = 0.0
    for start in range(0, len(counts), batch_size):
        part = slice(start, start + batch_size)
        log_probabilities = masked_log_probabilities(model, context, answer, masked[part], mask_token_id)
        rows = masked[part].nonzero()[:, 0]
        total += (log_probabilities * len(answer) / counts[part][rows]).sum().item()
    return total / len(counts)


def masked_counts(length: int, num_samples: int, generator: torch.Generator) -> torch.LongTensor:
    """Returns each sample's number of masked tokens: 1 to `length`, at equal distances from a random start.

    This is the published stratification. Each count alone is uniform, and together they are spread evenly.
    """
    first = torch.randint(1, length + 1, (), generator=generator)
    steps = torch.arange(num_samples) * length // num_samples
    return (first + steps - 1) % length + 1


def mask_answers(length: int, counts: torch.LongTensor, generator: torch.Generator) -> torch.BoolTensor:
    """Draws which tokens are masked, `(num_samples, length)`: each sample's count of them, uniformly."""
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
