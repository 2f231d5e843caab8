# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Intervals of an accuracy and of a mean, and a test of a drop in accuracy."""

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, pstdev
from typing import Any


def wilson_interval(fraction: Any, count: Any) -> tuple[Any, Any]:
    """Returns the 95 % score interval (Wilson 1927) of a fraction of `count` independent cases, numbers or tensors."""
    squared = 1.96**2 / count
    center = (fraction + squared / 2) / (1 + squared)
    half = (squared * (fraction * (1 - fraction) + squared / 4)) ** 0.5 / (1 + squared)
    return center - half, center + half


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the 95 % interval of a mean, by the normal approximation."""
    half = 1.96 * pstdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def accuracy_drop_p_value(reference: Sequence[bool], candidate: Sequence[bool], max_drop: float) -> float:
    """Returns the probability of data as good as these if `candidate` lost more than `max_drop` on all prompts.

    The score test of non-inferiority for paired right-or-wrong answers
    ([Tango 1998](https://doi.org/10.1002/(SICI)1097-0258(19980430)17:8<891::AID-SIM780>3.0.CO;2-B)), with a correction
    for continuity.
    """
    if not 0 < max_drop < 1:
        raise ValueError(f"`max_drop` must be above 0 and below 1, got {max_drop}.")

    pairs = list(zip(reference, candidate, strict=True))
    num = len(pairs)
    lost = pairs.count((True, False))
    gained = pairs.count((False, True))
    if not lost + gained:
        return (1 - max_drop) ** num

    # The likeliest rate of gains, if `max_drop` is lost, solves a quadratic equation.
    b = lost + gained - (2 * num - lost + gained) * max_drop
    gain_rate = (b + math.sqrt(b**2 + 8 * num * gained * max_drop * (1 - max_drop))) / (4 * num)
    deviation = math.sqrt(num * (2 * gain_rate + max_drop * (1 - max_drop)))
    return NormalDist().cdf((lost - gained - num * max_drop + 0.5) / deviation)
