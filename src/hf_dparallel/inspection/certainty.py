# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""How certainty grows over the passes of a decode: the numbers behind the pictures of `plots.py`.

The functions read a [`DiffusionGenerationOutput`] that was made with `output_certainty=True`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedTokenizerBase

from ..data.rewards import RewardFunction, answers_correct
from ..evaluation.intervals import wilson_interval
from ..generation.answerer import Answerer
from ..generation.output import DiffusionGenerationOutput


if TYPE_CHECKING:
    from datasets import Dataset


@dataclass
class Reliability:
    """How often predictions are right, by their confidence.

    Args:
        confidence (`torch.FloatTensor` of shape `(bins,)`): mean confidence of the predictions in each bin, NaN if
            there are none.
        accuracy (`torch.FloatTensor` of shape `(bins,)`): the part of them that is right, NaN if there are none.
        count (`torch.LongTensor` of shape `(bins,)`): how many there are.
    """

    confidence: torch.FloatTensor
    accuracy: torch.FloatTensor
    count: torch.LongTensor


def mean_confidence(confidences: torch.FloatTensor, num_passes: int) -> torch.FloatTensor:
    """Averages the confidences of a decode over its rows (the paper's Figs. 2b, 6 and 7).

    Args:
        confidences (`torch.FloatTensor` of shape `(batch_size, passes, tokens)`): from [`DiffusionGenerationOutput`]:
            NaN where a token is decided. It keeps the confidence it was decided with.
        num_passes (`int`): how many passes to return; the last one is repeated if the decode took fewer.

    Returns:
        `torch.FloatTensor` of shape `(num_passes, tokens)`.
    """
    return _hold_last(confidences, num_passes).mean(dim=0)


def certainty_of(answerer: Answerer, prompt_ids: Sequence[list[int]]) -> torch.FloatTensor:
    """Decodes up to 64 prompts, and returns the mean confidence of every position over the first 16 passes."""
    out = answerer.with_(output_certainty=True).decode(prompt_ids[:64], "Certainty")
    return mean_confidence(out.confidences, num_passes=16)


def token_convergence(
    out: DiffusionGenerationOutput, row: int = 0, num_tokens: int = 8
) -> tuple[list[int], torch.FloatTensor]:
    """Confidence of single tokens over the passes (the paper's Fig. 2c).

    Args:
        out ([`DiffusionGenerationOutput`]): of a decode.
        row (`int`, *optional*, defaults to 0): the answer to look at.
        num_tokens (`int`, *optional*, defaults to 8): how many tokens, spread evenly over the answer.

    Returns:
        `tuple`: the positions of the tokens, and their confidences of shape `(nfe, num_tokens)`. A decided token keeps
        the confidence that it was decided with.
    """
    decided = (out.commit_step[row] >= 0).nonzero().flatten()
    num_tokens = min(num_tokens, len(decided))
    positions = decided[torch.linspace(0, len(decided) - 1, num_tokens, device=decided.device).round().long()]
    kept = _hold_last(required(out, "confidences")[row : row + 1], int(out.nfe[row]))[0]
    return positions.tolist(), kept[:, positions]


def committed_confidence(out: DiffusionGenerationOutput) -> torch.FloatTensor:
    """Mean confidence with which the tokens of each answer were committed, `(batch_size,)` (the paper's Fig. 2a)."""
    committed = out.commit_step >= 0
    at_commit = required(out, "confidences").gather(1, out.commit_step.clamp(min=0)[:, None])[:, 0]
    return at_commit.masked_fill(~committed, 0).sum(dim=1) / committed.sum(dim=1)


def answer_confidence_and_accuracy(
    out: DiffusionGenerationOutput,
    tokenizer: PreTrainedTokenizerBase,
    dataset: "Dataset",
    reward_funcs: RewardFunction | list[RewardFunction],
) -> dict[str, Any]:
    """Mean `confidence` of the committed tokens and `accuracy` of the answers: a point of the paper's Fig. 2a.

    With `accuracy_interval`, where the accuracy would lie with other prompts of the same kind ([`wilson_interval`]).

    Args:
        out ([`DiffusionGenerationOutput`]): the answers to the prompts of `dataset`.
        tokenizer, dataset, reward_funcs: as for [`evaluate_decoding`].
    """
    completion_ids = [tokens[tokens >= 0].tolist() for tokens in committed_tokens(out)]
    accuracy = fmean(answers_correct(dataset, completion_ids, tokenizer, reward_funcs))
    return {
        "confidence": committed_confidence(out).mean().item(),
        "accuracy": accuracy,
        "accuracy_interval": list(wilson_interval(accuracy, len(dataset))),
    }


def prediction_reliability(
    out: DiffusionGenerationOutput,
    reference: torch.LongTensor | None = None,
    passes: Sequence[int] | None = None,
    num_bins: int = 10,
) -> Reliability:
    """Compares what is predicted of masked tokens with what is committed in the end, by the predictions' confidence.

    Args:
        out ([`DiffusionGenerationOutput`]): of a decode.
        reference (`torch.LongTensor` of shape `(batch_size, max_new_tokens)`, *optional*): the right tokens, -1 where
            there is none. By default the committed ones; another decode's measure a student by its teacher.
        passes (`Sequence[int]`, *optional*): the passes, counted from 0, whose predictions count. By default all.
        num_bins (`int`, *optional*, defaults to 10): bins of equal width between 0 and 1.

    Raises:
        ValueError: if no answer took part in one of `passes`.
    """
    predictions, probabilities = required(out, "candidates"), required(out, "candidate_probabilities")
    num_passes = predictions.shape[1]
    chosen = list(range(num_passes)) if passes is None else list(passes)
    beyond = [step for step in chosen if not 0 <= step < num_passes]
    if beyond:
        raise ValueError(
            f"`passes` must be between 0 and {num_passes - 1}, the last pass of the decode, got {beyond}."
        )
    if reference is None:
        reference = committed_tokens(out)
    predicted, confidence = predictions[:, chosen, :, 0], probabilities[:, chosen, :, 0]
    is_compared = (predicted >= 0) & (reference >= 0)[:, None]
    is_right = (predicted == reference[:, None])[is_compared].float().cpu()
    confidence = confidence[is_compared].cpu()
    bins = (confidence * num_bins).long().clamp(max=num_bins - 1)
    count = torch.bincount(bins, minlength=num_bins)
    sums = [torch.bincount(bins, weights=values, minlength=num_bins) for values in (confidence, is_right)]
    mean_of_bin, accuracy = (torch.where(count > 0, total / count, torch.nan).float() for total in sums)
    return Reliability(mean_of_bin, accuracy, count)


def committed_tokens(out: DiffusionGenerationOutput) -> torch.LongTensor:
    """The tokens that a decode has committed, `(batch_size, max_new_tokens)`, -1 where it has committed none."""
    tokens = out.sequences[:, out.sequences.shape[1] - out.commit_step.shape[1] :]
    return tokens.masked_fill(out.commit_step < 0, -1)


def required(out: DiffusionGenerationOutput, name: str) -> torch.Tensor:
    """Returns what the passes of a decode predicted, by its name in [`DiffusionGenerationOutput`]."""
    values = getattr(out, name)
    if values is None:
        raise ValueError(
            f"`out` has no {name}. Decode with `output_certainty=True` and `return_dict_in_generate=True`."
        )
    return values


def _hold_last(confidences: torch.FloatTensor, num_passes: int) -> torch.FloatTensor:
    """Fills in the last confidence of each token where it is decided, `(batch_size, num_passes, tokens)`."""
    filled = [confidences[:, 0]]
    for step in range(1, num_passes):
        current = confidences[:, min(step, confidences.shape[1] - 1)]
        filled.append(torch.where(current.isnan(), filled[-1], current))
    return torch.stack(filled, dim=1)
