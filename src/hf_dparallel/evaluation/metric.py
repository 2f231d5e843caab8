# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The cost of decoding as a metric of `evaluate` (extra `[eval]`)."""

from collections.abc import Collection, Sequence

import evaluate
from datasets import Features, Value
from datasets import Sequence as ListOf

from .cost import DecodingCost, mean_cost


class DecodingEfficiency(evaluate.Metric):
    """
    Measures forward passes, tokens per pass, tokens per second and latency of answers that any sampler has decoded.

    `compute` takes `predictions` (`list[list[int]]`), the new tokens of each answer, with or without padding; `nfe`
    (`list[int]`), its forward passes; `eos_token_id` (`int` or `list[int]`), the tokens that end an answer; and
    optionally `latency_s` (`list[float]`), the seconds of each answer, decoded one after the other. It returns what
    [`mean_cost`] returns.

    Raises:
        ValueError: if there are no answers, or an answer has no positive number of passes or seconds.

    Example:

    ```python
    >>> from hf_dparallel.evaluation.metric import DecodingEfficiency

    >>> cost = DecodingEfficiency().compute(predictions=[[11, 12, 13, 2], [11, 2, 2, 2]], nfe=[3, 1], eos_token_id=2)
    >>> cost["nfe"], cost["answer_tokens_per_forward"]
    (2.0, 1.0)
    ```
    """

    def _info(self) -> evaluate.MetricInfo:
        features = Features({"predictions": ListOf(Value("int64")), "nfe": Value("int64")})
        return evaluate.MetricInfo(description=str(self.__doc__), citation="", features=features)

    def _compute(
        self,
        predictions: Sequence[Sequence[int]],
        nfe: Sequence[int],
        eos_token_id: int | Collection[int],
        latency_s: Sequence[float] | None = None,
    ) -> dict[str, float]:
        for name, values in (("nfe", nfe), ("latency_s", latency_s)):
            if values is not None and (len(values) != len(predictions) or min(values) <= 0):
                raise ValueError(f"`{name}` must have a positive number for each of {len(predictions)} answers.")
        answers = zip(predictions, nfe, strict=True)
        costs = [DecodingCost.of_tokens(tokens, passes, eos_token_id) for tokens, passes in answers]
        return mean_cost(costs, None if latency_s is None else sum(latency_s))
