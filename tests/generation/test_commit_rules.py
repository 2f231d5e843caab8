# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
import torch

from hf_dparallel.generation.commit_rules import (
    commit_by_confidence,
    commit_by_confidence_factor,
    commit_by_count,
    commit_by_entropy,
    commit_by_entropy_bound,
    scheduled_count,
)


MASKED = torch.tensor([[True, True, False, True], [False, False, False, False], [True, True, True, True]])


def test_commit_by_entropy():
    entropy = torch.tensor([[0.4, 0.6, 0.0, 0.5], [0.0, 0.0, 0.0, 0.0], [3.0, 2.0, 5.0, 4.0]])
    expected = torch.tensor([[True, False, False, True], [False] * 4, [False, True, False, False]])
    assert torch.equal(commit_by_entropy(entropy, MASKED, 0.5), expected)


def test_commit_by_confidence():
    confidence = torch.tensor([[0.9, 0.3, 1.0, 0.95], [1.0, 1.0, 1.0, 1.0], [0.1, 0.2, 0.3, 0.2]])
    expected = torch.tensor([[True, False, False, True], [False] * 4, [False, False, True, False]])
    assert torch.equal(commit_by_confidence(confidence, MASKED, 0.9), expected)


def test_commit_by_count():
    confidence = torch.tensor([[0.9, 0.3, 1.0, 0.95], [1.0, 1.0, 1.0, 1.0], [0.1, 0.2, 0.3, 0.2]])
    count = torch.tensor([1, 2, 3])
    expected = torch.tensor([[False, False, False, True], [False] * 4, [False, True, True, True]])
    assert torch.equal(commit_by_count(confidence, MASKED, count), expected)


def test_scheduled_count_spreads_the_remainder_over_the_first_steps():
    assert scheduled_count(8, 3, torch.arange(3)).tolist() == [3, 3, 2]
    assert scheduled_count(32, 32, torch.arange(32)).tolist() == [1] * 32


def test_commit_by_entropy_bound_sums_all_but_the_largest():
    entropy = torch.tensor([[0.3, 0.2, 0.0, 0.4], [0.0, 0.0, 0.0, 0.0], [3.0, 2.0, 5.0, 4.0]])
    # Row 0: {0.2}: 0, {0.2, 0.3}: 0.2, all three: 0.5.
    assert commit_by_entropy_bound(entropy, MASKED, 0.2).tolist()[0] == [True, True, False, False]
    assert commit_by_entropy_bound(entropy, MASKED, 0.5).tolist()[0] == [True, True, False, True]
    assert commit_by_entropy_bound(entropy, MASKED, 0.0).tolist() == [
        [False, True, False, False],
        [False] * 4,
        [False, True, False, False],
    ]


def test_commit_by_entropy_bound_with_infinite_entropies():
    largest = torch.finfo(torch.float32).max
    entropy = torch.tensor([[largest, largest, largest, largest]])
    assert commit_by_entropy_bound(entropy, torch.ones(1, 4, dtype=torch.bool), 1.0).sum() == 1


def test_commit_by_confidence_factor_takes_fewer_the_less_sure_they_are():
    confidence = torch.tensor([[0.9, 0.8, 1.0, 0.6], [1.0, 1.0, 1.0, 1.0], [0.1, 0.2, 0.3, 0.2]])
    # Row 0: 2 * 0.1 = 0.2, 3 * 0.2 = 0.6, 4 * 0.4 = 1.6.
    assert commit_by_confidence_factor(confidence, MASKED, 0.7).tolist() == [
        [True, True, False, False],
        [False] * 4,
        [False, False, True, False],
    ]
    assert commit_by_confidence_factor(confidence, MASKED, 0.1).tolist()[0] == [True, False, False, False]
    assert commit_by_confidence_factor(confidence, MASKED, 2.0).tolist()[0] == [True, True, False, True]
