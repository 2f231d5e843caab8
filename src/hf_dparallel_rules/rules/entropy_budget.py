# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The rule of TraDo: as many tokens as a budget of entropy allows."""

import math

from ..commit_rules import Prediction, Tensor, commit_rule, most_certain


@commit_rule("entropy_budget", float, noun="a number of nats", source="https://huggingface.co/papers/2509.06949",
    help="Commit the surest tokens, as many as fit: their entropies add up to less than this, in nats.")  # fmt: skip
def commit_by_entropy_budget(prediction: Prediction, masked: Tensor, budget: float) -> Tensor:
    ascending, order = prediction.entropy.masked_fill(~masked, math.inf).sort(dim=-1, stable=True)
    within = masked.new_zeros(masked.shape).scatter_(-1, order, ascending.cumsum(dim=-1) < budget)
    return masked & (within | most_certain(-prediction.entropy, masked))
