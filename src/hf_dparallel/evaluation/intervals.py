# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""An interval of an accuracy, and a test of a drop in it."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch


def wilson_interval(fraction: Any, count: Any) -> tuple[Any, Any]:
    """Returns the 95 % score interval (Wilson 1927) of a fraction of `count` independent cases, numbers or tensors."""
    squared = 1.96**2 / count
    center = (fraction + squared / 2) / (1 + squared)
    half = (squared * (fraction * (1 - fraction) + squared / 4)) ** 0.5 / (1 + squared)
    return center - half, center + half


def accuracy_drop_p_value(reference: Sequence[bool], candidate: Sequence[bool], max_drop: float) -> float:
    """Returns the probability of data as good as these if `candidate` lost more than `max_drop` on all prompts.

    The exact test of non-inferiority for paired right-or-wrong answers, in the order of the score statistic
    ([Tango 1998](https://doi.org/10.1002/(SICI)1097-0258(19980430)17:8<891::AID-SIM780>3.0.CO;2-B)): the largest
    probability over all rates of gained answers. Without disagreement it is about `(1 - max_drop) ** num_prompts`.
    """
    if not 0 < max_drop < 1:
        raise ValueError(f"`max_drop` must be above 0 and below 1, got {max_drop}.")
    pairs = list(zip(reference, candidate, strict=True))
    num, lost, gained = len(pairs), pairs.count((True, False)), pairs.count((False, True))
    counts = np.arange(num + 1)
    losses, gains = np.argwhere(np.add.outer(counts, counts) <= num).T  # of all possible outcomes
    # The likeliest rate of gains, if `max_drop` is lost, solves a quadratic equation.
    b = losses + gains - (2 * num - losses + gains) * max_drop
    gain_rate = (b + np.sqrt(b**2 + 8 * num * gains * max_drop * (1 - max_drop))) / (4 * num)
    statistic = (losses - gains - num * max_drop) / np.sqrt(num * (2 * gain_rate + max_drop * (1 - max_drop)))
    is_extreme = statistic <= statistic[(losses == lost) & (gains == gained)] + 1e-9
    outcomes = torch.tensor(np.stack([losses, gains, num - losses - gains])[:, is_extreme], dtype=torch.float64)
    log_ways = math.lgamma(num + 1) - torch.lgamma(outcomes + 1).sum(dim=0)
    # Denser towards 0, where methods that mostly agree are.
    gain_rates = (1 - max_drop) / 2 * torch.linspace(0, 1, 64, dtype=torch.float64) ** 2
    rates = torch.stack([gain_rates + max_drop, gain_rates, 1 - max_drop - 2 * gain_rates], dim=1)
    log_rates = rates.clamp(min=1e-300).log()
    return max((log_ways + of_outcome @ outcomes).exp().sum().item() for of_outcome in log_rates)
