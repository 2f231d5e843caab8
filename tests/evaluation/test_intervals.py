# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
import math
from functools import cache

import numpy as np
import pytest

from hf_dparallel.evaluation.intervals import accuracy_drop_p_value, mean_interval, wilson_interval


def outcomes(lost: int, gained: int, num: int) -> tuple[list[bool], list[bool]]:
    both = num - lost - gained
    return [True] * lost + [False] * gained + [True] * both, [False] * lost + [True] * gained + [True] * both


@cache
def p_value(lost: int, gained: int, num: int, max_drop: float) -> float:
    """Once for all samples with these counts."""
    return accuracy_drop_p_value(*outcomes(lost, gained, num), max_drop)


@pytest.mark.parametrize(
    ("lost", "gained", "num", "max_drop", "expected"),
    [(8, 6, 200, 0.03, 0.1606), (3, 1, 120, 0.05, 0.0677), (12, 6, 300, 0.05, 0.0322), (5, 0, 150, 0.05, 0.2344)],
)
def test_p_value_of_many_answers(lost, gained, num, max_drop, expected):
    """Computed once by the exact test, with the trinomial distribution of SciPy."""
    assert accuracy_drop_p_value(*outcomes(lost, gained, num), max_drop) == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("num", [1, 10, 100])
def test_p_value_without_disagreement(num):
    # That nothing is lost in `num` answers has at most this probability if more than `max_drop` is lost of all.
    assert accuracy_drop_p_value(*outcomes(0, 0, num), max_drop=0.02) == pytest.approx(0.98**num)


def test_a_drop_that_is_too_large_is_seldom_accepted():
    """At the edge, where just `max_drop` is lost, a test at 10 % may accept at most one sample in ten."""
    rng = np.random.default_rng(0)
    for gain_rate in (0.0, 0.05):
        probabilities = [gain_rate + 0.03, gain_rate, 1 - 2 * gain_rate - 0.03]
        samples = rng.multinomial(120, probabilities, size=300)
        accepted = [p_value(lost, gained, 120, 0.03) < 0.1 for lost, gained, _ in samples]
        assert np.mean(accepted) < 0.14  # 300 samples: two standard deviations above 10 %


def test_a_method_that_loses_nothing_is_accepted():
    rng = np.random.default_rng(0)
    samples = rng.multinomial(500, [0.01, 0.01, 0.98], size=10)
    accepted = [p_value(lost, gained, 500, 0.02) < 0.1 for lost, gained, _ in samples]
    assert np.mean(accepted) > 0.7


@pytest.mark.parametrize("max_drop", [0.0, -0.1, 1.0])
def test_drop_out_of_range(max_drop):
    with pytest.raises(ValueError, match=r"`max_drop`"):
        accuracy_drop_p_value([True], [True], max_drop)


def test_an_interval_of_few_cases_is_wide_also_where_all_agree():
    # By hand: the ends are where a score test with z = 1.96 just does not reject.
    for fraction, count in ((0.75, 4), (1.0, 4), (0.0, 9), (0.5, 200)):
        for end in wilson_interval(fraction, count):
            deviation = 1.96 * math.sqrt(end * (1 - end) / count) if 0 < end < 1 else 0.0
            assert abs(fraction - end) == pytest.approx(deviation, abs=1e-9)
    assert wilson_interval(1.0, 4)[0] == pytest.approx(0.51, abs=1e-3)


def test_the_interval_of_a_mean_has_it_as_often_as_it_says():
    rng = np.random.default_rng(0)
    intervals = [mean_interval(rng.poisson(3, 100).tolist()) for _ in range(400)]
    assert 0.92 < np.mean([low < 3 < high for low, high in intervals]) < 0.98
    assert mean_interval([2, 2]) == (2, 2) and mean_interval([5]) == (5, 5)
