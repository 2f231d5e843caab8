# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What answers cost: forward passes, tokens per pass and per second, latency. The one record under every report."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np


@dataclass(frozen=True)
class DecodingCost:
    """What one answer cost.

    Args:
        nfe (`int`): forward passes that the answer took part in.
        num_tokens (`int`): its tokens, up to and including the first end-of-sequence token.
        num_answer_tokens (`int`): its tokens before that one.
        num_canvas_tokens (`int`): all tokens of its canvas, padding included.
        seconds (`float`, *optional*): from its entry into the batch to its end; other answers of the batch are decoded
            in that time, too.
        num_revisions (`int`): how often one of its decided tokens was changed or taken back.
    """

    nfe: int
    num_tokens: int
    num_answer_tokens: int
    num_canvas_tokens: int
    seconds: float | None = None
    num_revisions: int = 0

    @classmethod
    def of_tokens(
        cls,
        tokens: Sequence[int],
        nfe: int,
        eos_token_id: int | Collection[int],
        num_canvas_tokens: int | None = None,
        seconds: float | None = None,
        num_revisions: int = 0,
    ) -> "DecodingCost":
        """Counts the new tokens of an answer; by default they are the whole canvas."""
        num_answer_tokens = count_answer_tokens(tokens, eos_token_id)
        canvas = len(tokens) if num_canvas_tokens is None else num_canvas_tokens
        num_tokens = min(num_answer_tokens + 1, len(tokens))
        return cls(nfe, num_tokens, num_answer_tokens, canvas, seconds, num_revisions)

    @property
    def tokens_per_forward(self) -> float:
        """Divides `num_tokens` by `nfe`, as [`DiffusionGenerationOutput`] does."""
        return self.num_tokens / self.nfe if self.nfe else 0.0


def mean_cost(costs: Sequence[DecodingCost], seconds: float | None = None) -> dict[str, float]:
    """Returns the mean cost of answers. In every report, these names have these meanings.

    Args:
        costs (`Sequence[DecodingCost]`): of each answer.
        seconds (`float`, *optional*): wall-clock time in which all of them were decoded.

    Returns:
        `dict[str, float]`:

        - `nfe`, `num_tokens`, `num_answer_tokens`: means over the answers, see [`DecodingCost`].
        - `tokens_per_forward`: mean over the answers of `num_tokens` over `nfe`.
        - `answer_tokens_per_forward`: the sum of all `num_answer_tokens` over the sum of all `nfe`.
        - `tokens_per_forward_with_padding`: the sum of all `num_canvas_tokens` over the sum of all `nfe`.

        If a token was revised:

        - `num_revisions`: mean over the answers.

        With `seconds`:

        - `latency_s`: `seconds` over the number of answers.
        - `tokens_per_second`: the sum of all `num_answer_tokens` over `seconds`.

        If every answer has its own `seconds`:

        - `row_latency_s`: their mean.
        - `row_tokens_per_second`: the sum of all `num_answer_tokens` over their sum.
    """
    nfe, answer_tokens = sum(cost.nfe for cost in costs), sum(cost.num_answer_tokens for cost in costs)
    means = {
        "nfe": nfe / len(costs),
        "num_tokens": fmean(cost.num_tokens for cost in costs),
        "num_answer_tokens": answer_tokens / len(costs),
        "tokens_per_forward": fmean(cost.tokens_per_forward for cost in costs),
        "answer_tokens_per_forward": _ratio(answer_tokens, nfe),
        "tokens_per_forward_with_padding": _ratio(sum(cost.num_canvas_tokens for cost in costs), nfe),
    }
    if any(cost.num_revisions for cost in costs):
        means["num_revisions"] = fmean(cost.num_revisions for cost in costs)
    if seconds is not None:
        means |= {"latency_s": seconds / len(costs), "tokens_per_second": _ratio(answer_tokens, seconds)}
    row_seconds = [cost.seconds for cost in costs if cost.seconds is not None]
    if len(row_seconds) == len(costs):
        means |= {
            "row_latency_s": fmean(row_seconds),
            "row_tokens_per_second": _ratio(answer_tokens, sum(row_seconds)),
        }
    return means


def count_answer_tokens(completion_ids: Sequence[int], eos_token_id: int | Collection[int]) -> int:
    """Returns the number of tokens before the first end-of-sequence token.

    That token and what follows it are not counted: the AUP leaderboard counts so (see [`decoding_efficiency`]).
    `tokens_per_forward` counts one more, the end-of-sequence token itself, if there is one: the model has to predict
    it.

    Example:

    ```python
    >>> from hf_dparallel.evaluation.cost import count_answer_tokens

    >>> count_answer_tokens([11, 12, 13, 2, 2, 2], eos_token_id=2)
    3
    ```
    """
    ends = {eos_token_id} if isinstance(eos_token_id, int) else set(eos_token_id)
    return next((index for index, token in enumerate(completion_ids) if token in ends), len(completion_ids))


def decoding_efficiency(
    completion_ids: Sequence[Sequence[int]],
    nfe: Sequence[int],
    *,
    eos_token_id: int | Collection[int],
    max_new_tokens: int | None = None,
    latency_s: Sequence[float] | None = None,
) -> dict[str, float]:
    r"""
    Measures what answers cost.

    `answer_tokens_per_forward` is the number that the AUP leaderboard compares, but its evaluation code
    (https://github.com/hao-ai-lab/d3LLM) cuts the text of an answer at the stop strings of the task and tokenizes it
    again to count. Here the tokens that were decoded are counted; to compare with the leaderboard, cut them at the
    stop strings first.

    Args:
        completion_ids (`Sequence[Sequence[int]]`):
            New tokens of each answer, with or without what follows its end-of-sequence token.
        nfe (`Sequence[int]`):
            Forward passes of each answer.
        eos_token_id (`int` or `Collection[int]`):
            The token, or tokens, that end an answer.
        max_new_tokens (`int`, *optional*):
            Tokens on the canvas of each answer, padding included. By default those in `completion_ids`.
        latency_s (`Sequence[float]`, *optional*):
            Seconds that each answer took, decoded one after the other.

    Returns:
        `dict[str, float]`: what [`mean_cost`] returns. With `latency_s` also `latency_p50_s`, `latency_p90_s` and
        `latency_p99_s`: percentiles of the latency, interpolated linearly.

    Raises:
        ValueError: if there are no answers, or the arguments do not belong together.

    Example:

    ```python
    >>> from hf_dparallel.evaluation.cost import decoding_efficiency

    >>> cost = decoding_efficiency([[11, 12, 13, 2], [11, 2, 2, 2]], [3, 1], eos_token_id=2, latency_s=[3.0, 1.0])
    >>> {name: cost[name] for name in ("nfe", "answer_tokens_per_forward", "tokens_per_second", "latency_p90_s")}
    {'nfe': 2.0, 'answer_tokens_per_forward': 1.0, 'tokens_per_second': 1.0, 'latency_p90_s': 2.8}
    ```
    """
    _check_lengths(completion_ids, nfe, max_new_tokens, latency_s)
    costs = [
        DecodingCost.of_tokens(tokens, passes, eos_token_id, max_new_tokens)
        for tokens, passes in zip(completion_ids, nfe, strict=True)
    ]
    if latency_s is None:
        return mean_cost(costs)
    percentiles = {f"latency_p{p}_s": float(np.percentile(latency_s, p)) for p in (50, 90, 99)}
    return mean_cost(costs, sum(latency_s)) | percentiles


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0


def _check_lengths(
    completion_ids: Sequence[Sequence[int]],
    nfe: Sequence[int],
    max_new_tokens: int | None,
    latency_s: Sequence[float] | None,
) -> None:
    num_answers = len(completion_ids)
    if num_answers == 0:
        raise ValueError("There are no answers to measure: `completion_ids` is empty.")
    for name, values in {"nfe": nfe, "latency_s": [1] * num_answers if latency_s is None else latency_s}.items():
        if len(values) != num_answers:
            raise ValueError(f"`{name}` must have one number per answer, got {len(values)} for {num_answers} answers.")
        if min(values) <= 0:
            raise ValueError(f"`{name}` must be above 0 for every answer, got {min(values)}.")
    longest = max(map(len, completion_ids))
    if max_new_tokens is not None and longest > max_new_tokens:
        raise ValueError(
            f"`max_new_tokens` must be at least the tokens of the longest answer, got {max_new_tokens} and an answer "
            f"of {longest} tokens. Pass the new tokens only, without the prompt."
        )
