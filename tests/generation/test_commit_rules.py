# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
import torch

from hf_dparallel.generation.commit_rules import (
    commit_by_confidence,
    commit_by_count,
    commit_by_entropy,
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
