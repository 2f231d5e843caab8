# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The second rule of Fast-dLLM: the more tokens at once, the more confident must the last one be."""

import math

from ..commit_rules import Prediction, Tensor, commit_rule, most_certain


@commit_rule("confidence_factor", float, above_minimum=True, source="https://huggingface.co/papers/2505.22618",
    help="Commit the `n` most confident tokens, with the largest `n` such that `(n+1)(1-p_n)` is below this value. "
    "`p_n` is the probability of the last of them (Theorem 1 of Fast-dLLM).")  # fmt: skip
def commit_by_confidence_factor(prediction: Prediction, masked: Tensor, factor: float) -> Tensor:
    confidence = prediction.confidence.masked_fill(~masked, -math.inf)
    descending, order = confidence.sort(dim=-1, descending=True, stable=True)
    count = order.new_ones(order.shape).cumsum(dim=-1)
    # Both sides of the product grow with the count: where it holds, it holds for every smaller one.
    within = masked.new_zeros(masked.shape).scatter_(-1, order, (count + 1) * (1 - descending) < factor)
    return masked & (within | most_certain(confidence, masked))
