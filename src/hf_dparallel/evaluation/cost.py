# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The cost of answers: forward passes, tokens per pass and per second, latency. Every report is made of it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True)
class DecodingCost:
    """
    The cost of one answer.

    Args:
        nfe (`int`): forward passes that the answer took part in.
        num_tokens (`int`): its tokens, up to and including the first end-of-sequence token.
        num_answer_tokens (`int`): its tokens before that one.
        seconds (`float`, *optional*): from its entry into the batch to its end.
    """

    nfe: int
    num_tokens: int
    num_answer_tokens: int
    seconds: float | None = None

    @classmethod
    def of_tokens(
        cls, tokens: Sequence[int], nfe: int, eos_token_id: int | Collection[int], seconds: float | None = None
    ) -> "DecodingCost":
        """Counts the new tokens of an answer, with or without what follows its end-of-sequence token."""
        ends = {eos_token_id} if isinstance(eos_token_id, int) else set(eos_token_id)
        num_answer_tokens = next((index for index, token in enumerate(tokens) if token in ends), len(tokens))
        return cls(nfe, min(num_answer_tokens + 1, len(tokens)), num_answer_tokens, seconds)

    @property
    def tokens_per_forward(self) -> float:
        """Divides `num_tokens` by `nfe`, as [`DiffusionGenerationOutput`] does."""
        return _ratio(self.num_tokens, self.nfe)


def mean_cost(costs: Sequence[DecodingCost], seconds: float | None = None) -> dict[str, float]:
    """
    Averages the cost of answers. In every report, these names have these meanings.

    Args:
        costs (`Sequence[DecodingCost]`): of each answer.
        seconds (`float`, *optional*): wall-clock time in which all of them were decoded.

    Returns:
        `dict[str, float]`:

        - `nfe`, `num_tokens`, `num_answer_tokens`: means over the answers, see [`DecodingCost`].
        - `tokens_per_forward`: mean over the answers of `num_tokens` over `nfe`.
        - `answer_tokens_per_forward`: the sum of all `num_answer_tokens` over the sum of all `nfe`.
        - `latency_s`: `seconds` over the number of answers.
        - `tokens_per_second`: the sum of all `num_answer_tokens` over `seconds`.
        - `row_latency_s`: mean of the answers' own seconds, if each has them.

    Raises:
        ValueError: if there are no answers.
    """
    if not costs:
        raise ValueError("There are no answers to measure.")

    nfe = sum(cost.nfe for cost in costs)
    answer_tokens = sum(cost.num_answer_tokens for cost in costs)
    means = {
        "nfe": nfe / len(costs),
        "num_tokens": fmean(cost.num_tokens for cost in costs),
        "num_answer_tokens": answer_tokens / len(costs),
        "tokens_per_forward": fmean(cost.tokens_per_forward for cost in costs),
        "answer_tokens_per_forward": _ratio(answer_tokens, nfe),
    }

    if seconds is not None:
        means |= {"latency_s": seconds / len(costs), "tokens_per_second": _ratio(answer_tokens, seconds)}

    row_seconds = [cost.seconds for cost in costs if cost.seconds is not None]
    if len(row_seconds) == len(costs):
        means["row_latency_s"] = fmean(row_seconds)
    return means


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0
