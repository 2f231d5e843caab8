# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What answers cost: forward passes, tokens per pass and per second, latency."""

from collections.abc import Collection, Sequence

import numpy as np


def count_answer_tokens(completion_ids: Sequence[int], eos_token_id: int | Collection[int]) -> int:
    """Returns the number of tokens before the first end-of-sequence token.

    That token and what follows it are not counted: the AUP leaderboard counts so (see [`decoding_efficiency`]).
    `tokens_per_forward` of [`DiffusionGenerationOutput`] counts one more, the end-of-sequence token itself, if there
    is one: the model has to predict it.

    Example:

    ```python
    >>> from hf_dparallel.evaluation.efficiency import count_answer_tokens

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

    Tokens per pass is a quotient of two sums over all answers, tokens over passes, so that long answers weigh more. So
    does the evaluation code of the AUP leaderboard (https://github.com/hao-ai-lab/d3LLM), but it cuts the text of an
    answer at the stop strings of the task and tokenizes it again to count. Here the tokens that were decoded are
    counted; to compare with the leaderboard, cut them at the stop strings first.

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
        `dict[str, float]`:

        - `nfe`: mean number of forward passes of an answer.
        - `tokens_per_forward`: tokens of all answers, without end-of-sequence tokens and padding, over all passes.
        - `tokens_per_forward_with_padding`: tokens on all canvases over all passes; flatters short answers.
        - `tokens_per_second`: tokens of all answers, without end-of-sequence tokens and padding, over all seconds.
        - `latency_p50_s`, `latency_p90_s`, `latency_p99_s`: percentiles of the latency, interpolated linearly.

        The last four only with `latency_s`.

    Raises:
        ValueError: if there are no answers, or the arguments do not belong together.

    Example:

    ```python
    >>> from hf_dparallel.evaluation.efficiency import decoding_efficiency

    >>> decoding_efficiency([[11, 12, 13, 2], [11, 2, 2, 2]], [3, 1], eos_token_id=2, latency_s=[3.0, 1.0])
    {'nfe': 2.0, 'tokens_per_forward': 1.0, 'tokens_per_forward_with_padding': 2.0, 'tokens_per_second': 1.0,
     'latency_p50_s': 2.0, 'latency_p90_s': 2.8, 'latency_p99_s': 2.98}
    ```
    """
    _check_lengths(completion_ids, nfe, max_new_tokens, latency_s)
    num_tokens = sum(count_answer_tokens(ids, eos_token_id) for ids in completion_ids)
    canvas = max_new_tokens * len(nfe) if max_new_tokens is not None else sum(len(ids) for ids in completion_ids)
    passes = sum(nfe)
    figures = {
        "nfe": passes / len(nfe),
        "tokens_per_forward": num_tokens / passes,
        "tokens_per_forward_with_padding": canvas / passes,
    }
    if latency_s is None:
        return figures
    percentiles = {f"latency_p{p}_s": float(np.percentile(latency_s, p)) for p in (50, 90, 99)}
    return figures | {"tokens_per_second": num_tokens / sum(latency_s)} | percentiles


def _check_lengths(
    completion_ids: Sequence[Sequence[int]],
    nfe: Sequence[int],
    max_new_tokens: int | None,
    latency_s: Sequence[float] | None,
) -> None:
    if len(completion_ids) == 0:
        raise ValueError("There are no answers to measure: `completion_ids` is empty.")
    for name, values in (("nfe", nfe), ("latency_s", latency_s)):
        if values is None:
            continue
        if len(values) != len(completion_ids):
            raise ValueError(
                f"`{name}` must have one number per answer, got {len(values)} for {len(completion_ids)} answers."
            )
        if min(values) <= 0:
            raise ValueError(f"`{name}` must be above 0 for every answer, got {min(values)}.")
    longest = max(len(ids) for ids in completion_ids)
    if max_new_tokens is not None and longest > max_new_tokens:
        raise ValueError(
            f"`max_new_tokens` must be at least the tokens of the longest answer, got {max_new_tokens} and an answer "
            f"of {longest} tokens. Pass the new tokens only, without the prompt."
        )
