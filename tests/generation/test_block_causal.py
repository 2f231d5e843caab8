# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Decoding of block-causal models: what a pass computes, and settings of their own."""

import pytest
import torch

from hf_dparallel.generation.configuration import resolve
from hf_dparallel.models.backbones import CACHE_ARGUMENT

from ..helpers import left_padded, make_sdar, make_shifted_sdar
from .test_recorded_runs import steps_in_block


def computed_widths(model, prompts, **kwargs):
    """The columns that each pass computes, and the rows and keys that its attention has."""
    shapes = []

    def record(module, args, kwargs, output):
        shapes.append((*args[0].shape[:2], kwargs[CACHE_ARGUMENT].layers[0].planned.num_keys))

    hook = model.model.layers[0].register_forward_hook(record, with_kwargs=True)
    ids, attention_mask = left_padded(prompts)
    out = model.generate(ids, attention_mask=attention_mask, return_dict_in_generate=True, **kwargs)
    hook.remove()
    return out, shapes


def test_a_pass_computes_what_is_open_and_what_was_decided_last():
    kwargs = {"max_new_tokens": 12, "block_length": 4, "denoising_steps": 6, "stop_at_eos": False}
    out, shapes = computed_widths(make_sdar(), [[2, 3, 4, 5, 6]], **kwargs)
    # One token of the prompt is in the first block, and three masks behind the answer complete the last one.
    assert out.nfe.item() == 7
    assert shapes == [(1, 8, 8), (1, 4, 8), (1, 8, 12), (1, 4, 12), (1, 8, 16), (1, 4, 16), (1, 8, 20)]
    # Rows in step share the window.
    _, shapes = computed_widths(make_sdar(), [[2, 3, 4, 5, 6], [7]], **kwargs)
    assert shapes[:4] == [(2, 8, 8), (2, 4, 8), (2, 8, 12), (2, 4, 12)]


def test_without_padding_a_pass_has_no_mask(monkeypatch):
    model, masks = make_sdar(), []
    score = model.score

    def recording(inputs, where, **kwargs):
        masks.append(inputs["attention_mask"])
        return score(inputs, where, **kwargs)

    monkeypatch.setattr(model, "score", recording)
    model.generate(torch.tensor([[2, 3, 4, 5]]), max_new_tokens=8, denoising_steps=4)
    is_masked = [not isinstance(mask, dict) for mask in masks]
    assert is_masked == [True, False, True, False]


def test_the_column_that_predicts_the_first_token_is_computed_beside_a_block():
    kwargs = {"max_new_tokens": 12, "block_length": 4, "denoising_steps": 6, "stop_at_eos": False}
    _, shapes = computed_widths(make_shifted_sdar(), [[2, 3, 4, 5, 6]], **kwargs)
    assert shapes[:6] == [(1, 8, 8), (1, 5, 8), (1, 9, 12), (1, 5, 12), (1, 9, 16), (1, 5, 16)]


def test_a_row_in_its_first_block_stays_where_it_is_when_a_longer_one_leaves():
    model = make_shifted_sdar()
    settings = {"max_new_tokens": 8, "block_length": 8, "denoising_steps": 8, "commit_order": "left_to_right"}
    prompts = [[2 + i for i in range(9)], [5]]
    (first,) = model.generate_many(prompts[:1], **settings, eos_token_id=62, stop_at_eos=False)
    settings["eos_token_id"] = int(first.tokens[0])
    together = list(model.generate_many(prompts, batch_size=2, **settings))
    alone = [row for prompt in prompts for row in model.generate_many([prompt], **settings)]
    assert together[0].nfe == 1 < together[1].nfe
    assert [row.tokens.tolist() for row in together] == [row.tokens.tolist() for row in alone]


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


def test_a_block_may_be_as_long_as_the_longest_sequence():
    out = make_sdar(max_position_embeddings=16).generate(torch.tensor([[2]]), max_new_tokens=3, block_length=16)
    assert out.shape == (1, 4) and not (out == 63).any()


def test_settings_follow_from_the_model():
    model = make_sdar(block_size=8)
    resolved = resolve(model)
    assert (resolved.block_length, resolved.cache_implementation) == (8, "block")
    assert resolve(model, resolved).settings() == resolved.settings()
    assert resolve(model, use_cache=False).cache_implementation is None
    # What other recipes are compared with has the cache, which is exact.
    assert resolve(model, resolved.one_token_per_pass()).cache_implementation == "block"
    assert resolve(model, model.generation_config, block_length=4).block_length == 4
    model.train().activation_checkpointing_enable()
    assert resolve(model).cache_implementation is None
