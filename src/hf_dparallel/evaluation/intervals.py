# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""How far measurements on a sample can be trusted: intervals, and a test of a drop in accuracy."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch


_NUM_NUISANCE_VALUES = 64


def bootstrap_interval(
    values: Sequence[float], level: float = 0.95, num_resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Returns where the mean would lie with other prompts of the same kind, a percentile bootstrap interval."""
    sample = np.asarray(values, dtype=float)
    draws = np.random.default_rng(seed).integers(len(sample), size=(num_resamples, len(sample)))
    low, high = np.quantile(sample[draws].mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def wilson_interval(fraction: Any, count: Any) -> tuple[Any, Any]:
    """Returns the 95 % score interval (Wilson 1927) of a fraction of `count` independent cases, numbers or tensors.

    Where all cases agree, a bootstrap would say that all others will.
    """
    squared = 1.96**2 / count
    center = (fraction + squared / 2) / (1 + squared)
    half = (squared * (fraction * (1 - fraction) + squared / 4)) ** 0.5 / (1 + squared)
    return center - half, center + half


def accuracy_drop_p_value(reference: Sequence[bool], candidate: Sequence[bool], max_drop: float) -> float:
    """Returns the probability of data as good as these if `candidate` lost more than `max_drop` on all prompts.

    The exact unconditional test of non-inferiority for paired right-or-wrong answers, in the order of the score
    statistic ([Tango 1998](https://doi.org/10.1002/(SICI)1097-0258(19980430)17:8<891::AID-SIM780>3.0.CO;2-B)): the
    largest probability over all rates at which the two may disagree. Without any disagreement that is about
    `(1 - max_drop) ** num_prompts`: a drop of 1 point cannot be excluded at 90 % confidence with under 230 prompts.
    Below 0.1, say, a larger drop is excluded with a confidence of 90 %.
    """
    if not 0 < max_drop < 1:
        raise ValueError(f"`max_drop` must be above 0 and below 1, got {max_drop}.")
    pairs = list(zip(reference, candidate, strict=True))
    lost, gained = pairs.count((True, False)), pairs.count((False, True))
    num = len(pairs)
    # All possible outcomes, at most as favourable as none: (times lost, times gained).
    losses, gains = np.meshgrid(np.arange(num + 1), np.arange(num + 1), indexing="ij")
    possible = losses + gains <= num
    losses, gains = losses[possible], gains[possible]
    statistic = _score_statistic(losses, gains, num, max_drop)
    observed = _score_statistic(np.array([lost]), np.array([gained]), num, max_drop)[0]
    extreme = statistic <= observed + 1e-9
    losses, gains = losses[extreme], gains[extreme]
    outcomes = torch.tensor(np.stack([losses, gains, num - losses - gains]), dtype=torch.float64)
    log_ways = math.lgamma(num + 1) - torch.lgamma(outcomes + 1).sum(dim=0)
    # Rates of a gain, denser towards 0, where methods that mostly agree are.
    rates = (1 - max_drop) / 2 * torch.linspace(0, 1, _NUM_NUISANCE_VALUES, dtype=torch.float64) ** 2
    return max(_probability(outcomes, log_ways, rate, max_drop) for rate in rates)


def _score_statistic(losses: np.ndarray, gains: np.ndarray, num: int, drop: float) -> np.ndarray:
    """Divides observed less assumed losses by their standard deviation for a drop of `drop`."""
    # The likeliest rate of gains under that assumption solves a quadratic equation.
    b = losses + gains - (2 * num - losses + gains) * drop
    gain_rate = (b + np.sqrt(b**2 + 8 * num * gains * drop * (1 - drop))) / (4 * num)
    return (losses - gains - num * drop) / np.sqrt(num * (2 * gain_rate + drop * (1 - drop)))


def _probability(outcomes: torch.Tensor, log_ways: torch.Tensor, gain_rate: torch.Tensor, drop: float) -> float:
    """Returns the probability of all outcomes together, which are trinomial."""
    rates = torch.stack([gain_rate + drop, gain_rate, 1 - drop - 2 * gain_rate])
    # Outcomes that a rate of 0 excludes get the probability 0, and others lose nothing by it.
    return (log_ways + rates.clamp(min=1e-300).log() @ outcomes).exp().sum().item()
