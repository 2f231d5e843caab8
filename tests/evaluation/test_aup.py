# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""AUP: published values, and curves whose area is plain."""

import math

import pytest

from hf_dparallel.evaluation.aup import accuracy_under_parallelism


# https://hao-ai-lab.github.io/blogs/text-diffusion/dLLM_Results.csv: tokens per forward pass and accuracy at the
# published setting, accuracy at one token per pass, the best accuracy of any method in the table, the AUP.
@pytest.mark.parametrize(
    ("tokens_per_forward", "accuracy", "accuracy_at_one", "max_accuracy", "published"),
    [
        pytest.param(5.14, 72.63, 74.00, 74.98, 358.1422, id="dParallel-LLaDA GSM8K"),
        pytest.param(3.17, 30.18, 32.00, 41.15, 64.5356, id="dParallel-LLaDA MATH"),
        pytest.param(2.35, 40.00, 41.62, 63.60, 60.4513, id="dParallel-LLaDA MBPP"),
        pytest.param(4.49, 76.65, 79.15, 82.56, 309.0756, id="dParallel-LLaDA long GSM8K"),
        pytest.param(3.02, 82.12, 83.80, 83.94, 245.7335, id="dParallel-Dream GSM8K"),
        pytest.param(2.94, 38.72, 39.06, 49.92, 77.9471, id="dParallel-Dream MATH"),
        pytest.param(9.08, 73.10, 74.02, 74.98, 635.7170, id="d3LLM-LLaDA GSM8K"),
        pytest.param(1.44, 79.00, 83.68, 83.94, 116.4864, id="Fast-dLLM-Dream GSM8K"),
    ],
)
def test_published_values(tokens_per_forward, accuracy, accuracy_at_one, max_accuracy, published):
    accuracies = [accuracy_at_one, accuracy]
    value = accuracy_under_parallelism([1.0, tokens_per_forward], accuracies, max_accuracy=max_accuracy)
    assert value == pytest.approx(published, abs=5e-5)


def test_without_a_loss_it_is_the_area():
    assert accuracy_under_parallelism([1.0], [80.0]) == 80
    assert accuracy_under_parallelism([2.0, 5.0, 3.0], [80.0, 80.0, 80.0]) == pytest.approx(5 * 80)


def test_losses_are_weighted_and_neighbours_joined():
    value = accuracy_under_parallelism([1.0, 2.0, 4.0], [80.0, 78.0, 76.0])
    weighted = [80.0, 78 * math.exp(-3 * 2 / 80), 76 * math.exp(-3 * 4 / 80)]
    assert value == pytest.approx(80 + (weighted[0] + weighted[1]) / 2 + 2 * (weighted[1] + weighted[2]) / 2)


def test_points_below_the_floor_are_left_out():
    kept = accuracy_under_parallelism([1.0, 4.0], [80.0, 76.0])
    # 75 is no more than 5 points below 80; the slowest point sets the floor, not the best one.
    assert accuracy_under_parallelism([1.0, 4.0, 9.0], [80.0, 76.0, 74.9]) == kept
    assert accuracy_under_parallelism([1.0, 2.0, 4.0], [80.0, 60.0, 76.0]) == kept
    assert accuracy_under_parallelism([1.0, 4.0, 9.0], [80.0, 76.0, 75.0]) > kept


@pytest.mark.parametrize(
    ("tokens_per_forward", "accuracy", "message"),
    [
        ([], [], "got \\[\\] for 0 accuracies"),
        ([1.0, 2.0], [80.0], "for 1 accuracies"),
        ([1.0, 2.0], [0.8, 0.7], "Multiply fractions by 100"),
        ([1.0, 2.0], [80.0, 101.0], "between 0 and 100"),
        ([0.0, 2.0], [80.0, 80.0], r"must have a number above 0"),
        ([1.0, 1.0], [80.0, 70.0], "each another one"),
    ],
)
def test_bad_input(tokens_per_forward, accuracy, message):
    with pytest.raises(ValueError, match=message):
        accuracy_under_parallelism(tokens_per_forward, accuracy)


def test_accuracies_at_the_limits():
    assert accuracy_under_parallelism([1.0, 3.0], [100.0, 100.0]) == 300
    # An accuracy above the best of the others counts as it is, not more.
    assert accuracy_under_parallelism([1.0, 3.0], [90.0, 90.0], max_accuracy=80.0) == pytest.approx(3 * 90)
