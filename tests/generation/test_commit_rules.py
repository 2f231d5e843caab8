# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_dparallel.generation.commit_rules import commit_by_count
from hf_dparallel.generation.prediction import TokenPrediction
from hf_dparallel.generation.rules.confidence_factor import commit_by_confidence_factor
from hf_dparallel.generation.rules.confidence_threshold import commit_by_confidence
from hf_dparallel.generation.rules.denoising_steps import scheduled_counts
from hf_dparallel.generation.rules.entropy_bound import commit_by_entropy_bound
from hf_dparallel.generation.rules.entropy_threshold import commit_by_entropy


MASKED = torch.tensor([[True, True, False, True], [False, False, False, False], [True, True, True, True]])


def predicted(entropy=None, confidence=None):
    return TokenPrediction(tokens=None, confidence=confidence, entropy=entropy, logits=None)


def test_commit_by_entropy():
    entropy = torch.tensor([[0.4, 0.6, 0.0, 0.5], [0.0, 0.0, 0.0, 0.0], [3.0, 2.0, 5.0, 4.0]])
    expected = torch.tensor([[True, False, False, True], [False] * 4, [False, True, False, False]])
    assert torch.equal(commit_by_entropy(predicted(entropy), MASKED, 0.5), expected)


def test_commit_by_confidence():
    confidence = torch.tensor([[0.9, 0.3, 1.0, 0.95], [1.0, 1.0, 1.0, 1.0], [0.1, 0.2, 0.3, 0.2]])
    expected = torch.tensor([[True, False, False, True], [False] * 4, [False, False, True, False]])
    assert torch.equal(commit_by_confidence(predicted(confidence=confidence), MASKED, 0.9), expected)


def test_commit_by_count():
    confidence = torch.tensor([[0.9, 0.3, 1.0, 0.95], [1.0, 1.0, 1.0, 1.0], [0.1, 0.2, 0.3, 0.2]])
    count = torch.tensor([1, 2, 3])
    expected = torch.tensor([[False, False, False, True], [False] * 4, [False, True, True, True]])
    assert torch.equal(commit_by_count(confidence, MASKED, count), expected)


@pytest.mark.parametrize(
    ("settings", "counts"),
    [
        ((8, 8, 3), [[3, 3, 2]]),
        ((16, 8, 4), [[4, 4], [4, 4]]),
        # What does not divide goes to the first blocks and steps.
        ((16, 8, 3), [[4, 4], [8]]),
        ((12, 8, 5), [[2, 2, 2, 2], [4]]),
        # One token per pass, also in a last block that is shorter.
        ((5, 4, 5), [[1, 1, 1, 1], [1]]),
        ((1, 32, 1), [[1]]),
    ],
)
def test_a_schedule_spreads_its_passes_over_the_tokens(settings, counts):
    assert scheduled_counts(*settings) == counts


@given(st.integers(1, 80), st.integers(1, 40), st.data())
def test_a_schedule_takes_as_many_passes_as_it_says(max_new_tokens, block_length, data):
    num_blocks = -(-max_new_tokens // block_length)
    steps = data.draw(st.integers(num_blocks, max_new_tokens))
    counts = scheduled_counts(max_new_tokens, block_length, steps)
    assert sum(map(len, counts)) == steps and sum(map(sum, counts)) == max_new_tokens
    assert [sum(count) for count in counts[:-1]] == [block_length] * (num_blocks - 1)
    assert min(map(min, counts)) >= 1


def test_commit_by_entropy_bound_sums_all_but_the_largest():
    entropy = torch.tensor([[0.3, 0.2, 0.0, 0.4], [0.0, 0.0, 0.0, 0.0], [3.0, 2.0, 5.0, 4.0]])
    # Row 0: {0.2}: 0, {0.2, 0.3}: 0.2, all three: 0.5.
    assert commit_by_entropy_bound(predicted(entropy), MASKED, 0.2).tolist()[0] == [True, True, False, False]
    assert commit_by_entropy_bound(predicted(entropy), MASKED, 0.5).tolist()[0] == [True, True, False, True]
    assert commit_by_entropy_bound(predicted(entropy), MASKED, 0.0).tolist() == [
        [False, True, False, False],
        [False] * 4,
        [False, True, False, False],
    ]


def test_commit_by_entropy_bound_with_infinite_entropies():
    entropy = torch.full((1, 4), torch.inf)
    for rule in (commit_by_entropy, commit_by_entropy_bound):
        # The first one that may be committed.
        masked = torch.tensor([[False, True, True, True]])
        assert rule(predicted(entropy), masked, 1.0).tolist() == [[False, True, False, False]]


def test_commit_by_confidence_factor_takes_fewer_the_less_sure_they_are():
    prediction = predicted(confidence=torch.tensor([[0.9, 0.8, 1.0, 0.6], [1.0, 1.0, 1.0, 1.0], [0.1, 0.2, 0.3, 0.2]]))
    # Row 0: 2 * 0.1 = 0.2, 3 * 0.2 = 0.6, 4 * 0.4 = 1.6.
    assert commit_by_confidence_factor(prediction, MASKED, 0.7).tolist() == [
        [True, True, False, False],
        [False] * 4,
        [False, False, True, False],
    ]
    for factor in (0.1, 0.5):
        assert commit_by_confidence_factor(prediction, MASKED, factor).tolist()[0] == [True, False, False, False]
    assert commit_by_confidence_factor(prediction, MASKED, 2.0).tolist()[0] == [True, True, False, True]


def test_a_later_block_has_the_passes_of_its_own_schedule(tiny_llada):
    settings = {"max_new_tokens": 12, "block_length": 8, "denoising_steps": 5, "stop_at_eos": False}
    out = tiny_llada.generate(torch.tensor([[2, 3]]), return_dict_in_generate=True, **settings)
    assert out.nfe.item() == 5 and out.commit_step[0].bincount().tolist() == [2, 2, 2, 2, 4]
