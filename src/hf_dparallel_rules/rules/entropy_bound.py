# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The rule of the EB-sampler: as many tokens as a bound on their joint entropy allows."""

import math

from ..commit_rules import Prediction, Tensor, commit_rule, most_certain


@commit_rule("entropy_bound", float, noun="a number of nats", source="https://huggingface.co/papers/2505.24857",
    help="Commit the surest tokens, as many as fit: their entropies, without the largest, add up to at most "
    "this, in nats.")  # fmt: skip
def commit_by_entropy_bound(prediction: Prediction, masked: Tensor, bound: float) -> Tensor:
    # The joint entropy of some tokens is less than the sum of their entropies, by at most that sum less its largest.
    ascending, order = prediction.entropy.masked_fill(~masked, math.inf).sort(dim=-1, stable=True)
    # In ascending order the largest is the last, so what counts is the sum of those before it.
    before = ascending.cumsum(dim=-1).roll(1, dims=-1)
    before[..., 0] = 0
    within = masked.new_zeros(masked.shape).scatter_(-1, order, before <= bound)
    return masked & (within | most_certain(-prediction.entropy, masked))
