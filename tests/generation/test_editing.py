# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Editing (LLaDA2.1, https://huggingface.co/papers/2602.08676), beside the recorded runs and the naive loop."""

import pytest
import torch

from ..helpers import make_llada


def test_an_edit_is_never_sampled():
    """The second thoughts of a model are those it has at temperature 0."""
    model, calls = make_llada(), []

    def score(inputs, where, *args, **kwargs):
        calls.append(None)
        logits = torch.zeros(*where.shape, 64)
        # Nearly even between two tokens at first, then a little more for the other one.
        logits[..., 5], logits[..., 6] = (9.0, 9.1) if len(calls) == 1 else (9.2, 9.1)
        return logits

    model.score = score
    settings = {"max_new_tokens": 8, "block_length": 8, "confidence_threshold": 0.1, "temperature": 1.0}
    for seed in range(10):
        torch.manual_seed(seed)
        calls.clear()
        out = model.generate(torch.tensor([[2]]), editing_threshold=0.5, max_post_steps=1, **settings)
        assert out[0, 1:].tolist() == [5] * 8


@pytest.mark.parametrize("revision", [{"editing_threshold": 0.4}, {"revocation_threshold": 0.4}])
def test_a_token_does_not_repeat_itself(revision):
    """What the model prefers at every place, each time another token, stays, though the row has it by then."""
    model = make_llada()

    def score(inputs, where, **kwargs):
        # Behind a prompt of one token, and in the copy that verified commits add.
        preferred, other = (torch.arange(64) == (where % 4 + first)[..., None] for first in (5, 30))
        return 12.0 * preferred + 11.0 * other

    model.score = score
    settings = {"max_new_tokens": 4, "block_length": 4, "confidence_threshold": 1.0, "min_commits": 2}
    settings |= {"repetition_penalty": 1.3}
    out = model.generate(torch.tensor([[2]]), return_dict_in_generate=True, **settings, **revision)
    assert (out.sequences[0].tolist(), out.num_revisions.item()) == ([2, 6, 7, 8, 5], 0)


def test_without_post_steps_an_edited_block_stays_open_beside_one_with_masks():
    model, passes = make_llada(), iter([{0: 5}, {0: 6, 1: 7}, {0: 8, 2: 9, 3: 9}])

    def score(inputs, where, *args, **kwargs):
        # By the place after a prompt of one token; elsewhere nothing is preferred.
        wanted = torch.full((129,), -1)
        for place, token in next(passes).items():
            wanted[place + 1] = token
        return 20.0 * (torch.arange(64) == wanted[where][..., None])

    model.score = score
    settings = {"max_new_tokens": 4, "block_length": 2, "max_active_blocks": 2, "confidence_threshold": 0.5}
    out = model.generate(torch.tensor([[2]]), editing_threshold=0.5, max_post_steps=0, stop_at_eos=False, **settings)
    assert out[0].tolist() == [2, 8, 7, 9, 9]
