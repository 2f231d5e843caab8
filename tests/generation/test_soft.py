# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Soft decoding (DMax, https://huggingface.co/papers/2604.08302), beside the recorded runs and the naive loop."""

import pytest
import torch

from ..helpers import MASK, make_llada


LENGTHS = {"max_new_tokens": 16, "block_length": 6}


@pytest.mark.parametrize("max_active_blocks", [1, 2])
def test_decoding_ends_though_the_model_never_does(max_active_blocks):
    """A block takes at most as many passes as it has tokens, even where each pass changes all of them."""
    model, calls = make_llada(), []

    def score(inputs, where, **kwargs):
        calls.append(None)
        logits = torch.zeros(*where.shape, 64)
        logits[..., 5 + len(calls) % 2] = 4.0
        return logits

    model.score = score
    out = model.generate(
        torch.tensor([[2]]),
        max_new_tokens=12,
        block_length=4,
        soft_threshold=0.0,
        max_active_blocks=max_active_blocks,
        return_dict_in_generate=True,
    )
    assert out.nfe.item() == len(calls) == 12
    assert out.num_revisions.item() >= 3 * 4 * 3


def test_no_token_is_revised_by_nan():
    model, calls = make_llada(), []

    def score(inputs, where, **kwargs):
        calls.append(None)
        return torch.zeros(*where.shape, 64) if len(calls) == 1 else torch.full((*where.shape, 64), torch.nan)

    model.score = score
    with pytest.raises(FloatingPointError, match="NaN at step 1 of row 0"):
        model.generate(torch.tensor([[2]]), max_new_tokens=4, block_length=4, soft_threshold=0.0)


def test_bfloat16_models_get_embeddings_of_their_dtype():
    model = make_llada().bfloat16()
    out = model.generate(torch.tensor([[2, 3]]), soft_threshold=0.3, stop_at_eos=False, **LENGTHS)
    assert MASK not in out


def test_a_block_takes_no_more_passes_than_it_has_tokens():
    """Also where the answer is shorter than a block."""
    settings = {"max_new_tokens": 8, "soft_threshold": 0.2, "stop_at_eos": False, "return_dict_in_generate": True}
    prompts = torch.tensor([[2, 3, 4], [9, 3, 4], [30, 3, 4]])
    out = make_llada().generate(prompts, block_length=8, **settings)
    longer = make_llada().generate(prompts, block_length=2000, **settings)
    assert out.nfe.max() == 8
    assert torch.equal(longer.nfe, out.nfe) and torch.equal(longer.sequences, out.sequences)
