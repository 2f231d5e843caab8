# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_dparallel_rules.certainty import TokenPrediction
from hf_dparallel_rules.commit_rules import commit_by_count
from hf_dparallel_rules.rules.confidence_factor import commit_by_confidence_factor
from hf_dparallel_rules.rules.confidence_threshold import commit_by_confidence
from hf_dparallel_rules.rules.denoising_steps import scheduled_counts
from hf_dparallel_rules.rules.entropy_bound import commit_by_entropy_bound
from hf_dparallel_rules.rules.entropy_threshold import commit_by_entropy

from ..helpers import make_sdar
from .naive import steps_in_block


MASKED = torch.tensor([[True, True, False, True], [False, False, False, False], [True, True, True, True]])


def predicted(entropy=None, confidence=None):
    return TokenPrediction(None, confidence, entropy, logits=None)


ENTROPY = predicted(torch.tensor([[0.4, 0.6, 0.0, 0.5], [0.0] * 4, [3.0, 2.0, 5.0, 4.0]]))
# Exact in binary.
QUARTERS = torch.tensor([0.75, 0.75, 0.25, 0.25]).expand(3, -1)
CONFIDENCE = predicted(confidence=torch.tensor([[0.9, 0.8, 1.0, 0.6], [1.0] * 4, [0.1, 0.2, 0.3, 0.2]]))


@pytest.mark.parametrize(
    ("rule", "prediction", "value", "committed"),
    [
        (commit_by_entropy, ENTROPY, 0.5, [[0, 3], [], [1]]),
        (commit_by_confidence, CONFIDENCE, 0.8, [[0, 1], [], [2]]),
        # All but the largest count: {0.4}: 0, {0.4, 0.5}: 0.4, all three: 0.9.
        (commit_by_entropy_bound, ENTROPY, 0.0, [[0], [], [1]]),
        (commit_by_entropy_bound, ENTROPY, 0.4, [[0, 3], [], [1]]),
        (commit_by_entropy_bound, ENTROPY, 1.0, [[0, 1, 3], [], [1]]),
        # The fewer the less sure they are: 2 * 0.1 = 0.2, 3 * 0.2 = 0.6, 4 * 0.4 = 1.6.
        (commit_by_confidence_factor, CONFIDENCE, 0.1, [[0], [], [2]]),
        (commit_by_confidence_factor, CONFIDENCE, 0.5, [[0], [], [2]]),
        (commit_by_confidence_factor, CONFIDENCE, 0.7, [[0, 1], [], [2]]),
        (commit_by_confidence_factor, CONFIDENCE, 1.7, [[0, 1, 3], [], [2]]),
        # Below the factor, not at it: 3 * 0.25 = 0.75.
        (commit_by_confidence_factor, predicted(confidence=QUARTERS), 0.75, [[0], [], [0]]),
        (commit_by_confidence_factor, predicted(confidence=QUARTERS), 0.76, [[0, 1], [], [0, 1]]),
    ],
)
def test_what_a_rule_commits(rule, prediction, value, committed):
    assert [row.nonzero().flatten().tolist() for row in rule(prediction, MASKED, value)] == committed


def test_commit_by_count():
    expected = torch.tensor([[True, False, False, False], [False] * 4, [False, True, True, True]])
    assert torch.equal(commit_by_count(CONFIDENCE.confidence, MASKED, torch.tensor([1, 2, 3])), expected)


@pytest.mark.parametrize(
    ("settings", "counts"),
    [
        ((8, 8, 3), [[3, 3, 2]]),
        ((16, 8, 4), [[4, 4], [4, 4]]),
        # What does not divide goes to the first blocks and steps.
        ((16, 8, 3), [[4, 4], [8]]),
        ((12, 8, 5), [[2, 2, 2, 2], [4]]),
        # One token per pass, even in a last block that is shorter.
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


@pytest.mark.parametrize("rule", [commit_by_entropy, commit_by_entropy_bound])
def test_of_infinite_entropies_the_first_one_that_may_be_is_committed(rule):
    masked = torch.tensor([[False, True, True, True]])
    assert rule(predicted(torch.full((1, 4), torch.inf)), masked, 1.0).tolist() == [[False, True, False, False]]


@pytest.mark.parametrize(
    ("denoising_steps", "passes"), [(4, [1, 1, 1, 1]), (7, [2, 2, 2, 1]), (8, [2] * 4), (16, [3, 4, 4, 4])]
)
def test_a_schedule_counts_for_whole_blocks(denoising_steps, passes):
    """Also in the first, which has fewer masks."""
    run, settings = {"prompt_ids": [2, 3, 4, 5, 6]}, {"max_new_tokens": 16, "block_length": 4, "stop_at_eos": False}
    (row,) = make_sdar().generate_many([run["prompt_ids"]], denoising_steps=denoising_steps, **settings)
    blocks = torch.tensor(steps_in_block(row, run, 4)).split([3, 4, 4, 4, 1])
    assert [int(block.max()) for block in blocks[:4]] == passes


@pytest.mark.parametrize(
    ("max_new_tokens", "denoising_steps", "passes"), [(8, 2, 2), (8, 3, 3), (8, 5, 5), (12, 7, 7), (6, 3, 4)]
)
def test_behind_whole_blocks_a_schedule_takes_its_passes(max_new_tokens, denoising_steps, passes):
    """Unless the answer ends inside a block: then each block has the same number of them, rounded."""
    settings = {"max_new_tokens": max_new_tokens, "denoising_steps": denoising_steps, "stop_at_eos": False}
    out = make_sdar().generate(torch.arange(2, 10)[None], return_dict_in_generate=True, **settings)
    assert out.nfe.item() == passes
