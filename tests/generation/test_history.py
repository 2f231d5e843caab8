# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What is kept of the predictions of a decode."""

from types import SimpleNamespace

import torch

from hf_dparallel.generation.standard_parts import HISTORIES, CertaintyHistory

from ..helpers import MASK, exact_model, make_llada


def test_a_prompt_without_masks_has_its_empty_certainty_where_the_model_is():
    """The rows of a batch are put together, which fails between two devices."""
    history = CertaintyHistory()
    history.follow(None, SimpleNamespace(masked=torch.zeros(1, 4, dtype=torch.bool, device="meta")))
    empty = history.leave(0)
    assert set(empty) == set(HISTORIES)
    assert {tensor.device.type for tensor in empty.values()} == {"meta"}


def test_with_the_dual_cache_only_the_open_blocks_are_predicted():
    """Its passes compute nothing behind them."""
    settings = {"max_new_tokens": 12, "block_length": 4, "entropy_threshold": 0.0, "stop_at_eos": False}
    settings |= {"return_dict_in_generate": True, "output_certainty": True}
    out = exact_model(make_llada).generate(torch.tensor([[2, 3, 4]]), cache_implementation="dual", **settings)
    blocks = [set((line.isnan().logical_not().nonzero().flatten() // 4).tolist()) for line in out.entropies[0]]
    assert blocks == [{0}] * 4 + [{1}] * 4 + [{2}] * 4


def test_the_mask_token_is_no_candidate():
    model = exact_model(make_llada)
    with torch.no_grad():
        model.lm_head.weight[MASK] *= 50
    settings = {"max_new_tokens": 8, "block_length": 8, "output_certainty": True, "return_dict_in_generate": True}
    out = model.generate(torch.tensor([[2, 3]]), **settings)
    assert out.entropies.isinf().any() and not (out.candidates == MASK).any()


def test_rows_with_different_numbers_of_open_blocks_record_their_own():
    """Masks behind the open blocks, which fill up a row to the columns of another one, are not predicted."""
    settings = {"max_new_tokens": 24, "block_length": 8, "entropy_threshold": 1.0, "cache_implementation": "dual"}
    settings |= {"max_active_blocks": 3, "block_add_threshold": 0.25, "stop_at_eos": False}
    settings |= {"return_dict_in_generate": True, "output_certainty": True}
    prompts, model = torch.tensor([[30], [57], [37], [56]]), exact_model(make_llada)
    out = model.generate(prompts, **settings)
    for row, prompt in enumerate(prompts):
        alone = model.generate(prompt[None], **settings).entropies[0]
        assert torch.equal(out.entropies[row, : len(alone)].isnan(), alone.isnan())
