# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Block-causal models against the official implementations, and their attention masks."""

import itertools

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    DynamicCache,
)

from hf_dparallel import SDARConfig
from hf_dparallel.attention_masks import attention_blocks, block_causal, make_attention_mask
from hf_dparallel.models.backbones import CACHE_ARGUMENT
from hf_dparallel.training.block_collator import noisy_and_clean

from ..helpers import (
    edit_json,
    left_padded,
    make_block_a2d,
    make_fast_dllm,
    make_llada2,
    make_nemotron,
    make_sdar,
    make_sdar_moe,
)


BLOCK_CAUSAL = [make_sdar, make_sdar_moe, make_llada2, make_block_a2d, make_fast_dllm]
MAKERS = pytest.mark.parametrize("make_model", BLOCK_CAUSAL)
BY_BLOCK = pytest.mark.parametrize("make_model", [*BLOCK_CAUSAL, make_nemotron])


@pytest.mark.parametrize(
    ("make_model", "causal_type", "own_type"),
    [(make_sdar_moe, "qwen3_moe", "sdar_moe"), (make_sdar, "qwen3", "Dream")],
)
def test_a_family_without_official_outputs_is_a_causal_one_with_another_mask(
    tmp_path, make_model, causal_type, own_type
):
    """A class of transformers reads the same weights, and gets the mask from outside.

    DreamReasoner's file has the `model_type` of Dream, and is known by its blocks.
    """
    model = make_model()
    model.save_pretrained(tmp_path)
    if make_model is make_sdar_moe:
        names = load_file(tmp_path / "model.safetensors")
        assert names["model.layers.1.mlp.experts.3.up_proj.weight"].shape == (16, 32)
    edit_json(tmp_path / "config.json", model_type=causal_type)
    causal = AutoModelForCausalLM.from_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", model_type=own_type)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert type(loaded) is type(model) and loaded.config.block_length == 4
    ids, block = torch.arange(2, 16)[None], torch.arange(14) // 4
    with torch.no_grad():
        expected = causal(ids, attention_mask=(block[None, :] <= block[:, None])[None, None]).logits
        for each in (model, loaded):
            torch.testing.assert_close(each(ids).logits, expected)


@pytest.mark.parametrize("argument", sorted({"past_key_values", CACHE_ARGUMENT}))
@MAKERS
def test_whole_blocks_in_a_cache_change_nothing(make_model, argument):
    model = make_model()
    ids, attention_mask = left_padded([list(range(2, 18)), list(range(20, 32))])
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        expected = model(ids, attention_mask=attention_mask).logits[:, 12:]
        model(ids[:, :12], attention_mask=attention_mask[:, :12], use_cache=True, **{argument: cache})
        logits = model(ids[:, 12:], attention_mask=attention_mask, **{argument: cache}).logits
    # The column before is in the cache, and not computed.
    lead = int(model.shift_logits)
    torch.testing.assert_close(logits[:, lead:], expected[:, lead:], atol=1e-5, rtol=1e-5)


@BY_BLOCK
def test_a_mask_of_the_caller_is_taken_as_it_is(make_model):
    model = make_model()
    ids = torch.arange(2, 12)[None]
    everything = torch.ones(1, 1, 10, 10, dtype=torch.bool)
    with torch.no_grad():
        expected = model(ids, attention_mask=everything).logits
        torch.testing.assert_close(model(ids, attention_mask={"full_attention": None}).logits, expected)
        model.config.block_length = 10
        torch.testing.assert_close(model(ids).logits, expected)


def test_masks_say_who_sees_whom():
    """Against the definitions, read one pair at a time."""
    config = make_sdar().config
    block = torch.tensor([[0, 0, 1, 1, 2, 0, 0, 1, 1, 2], [0, 1, 1, 2, 2, 0, 1, 1, 2, 2]])
    key_mask = torch.ones(2, 10)
    key_mask[0, 9] = 0
    form = {"dtype": torch.float32, "device": block.device}
    causal = make_attention_mask(config, block_causal(block, block), (2, 10, 10), key_mask=key_mask, **form)
    for row in range(2):
        both = make_attention_mask(config, noisy_and_clean(block[row : row + 1], 5), (1, 10, 10), **form)
        for query in range(10):
            for key in range(10):
                before, same = block[row, key] < block[row, query], block[row, key] == block[row, query]
                assert causal[row, 0, query, key] == ((before or same) and (row, key) != (0, 9))
                within = query < 5 and same
                context = before or (same and query >= 5)
                assert both[0, 0, query, key] == (within if key < 5 else context)


@pytest.mark.parametrize("attention", ["block_causal", "causal_past"])
def test_a_past_that_is_causal_is_one_of_blocks_of_one_token(attention):
    """A noisy block sees the clean tokens before it and itself, and a clean token sees those up to its own."""
    positions = torch.arange(6).repeat(2)[None]
    is_clean = torch.arange(12) >= 6
    blocks = attention_blocks(attention, positions, positions - positions % 3, is_clean)
    form = {"dtype": torch.float32, "device": blocks.device}
    mask = make_attention_mask(make_sdar().config, noisy_and_clean(blocks, 6), (1, 12, 12), **form)[0, 0]
    for query, key in itertools.product(range(12), repeat=2):
        at, other = query % 6, key % 6
        if query < 6:
            expected = at // 3 == other // 3 if key < 6 else other < at // 3 * 3
        else:
            expected = key >= 6 and (other <= at or (attention == "block_causal" and other // 3 == at // 3))
        assert mask[query, key] == expected


@pytest.mark.parametrize("make_model", [make_sdar_moe, make_llada2])
def test_experts_run_in_one_call_unless_asked_otherwise(make_model):
    model = make_model()
    assert model.config._experts_implementation == "grouped_mm"
    ids = torch.arange(2, 12)[None]
    with torch.no_grad():
        expected = model(ids).logits
        for implementation in ("eager", "batched_mm"):
            model.set_experts_implementation(implementation)
            torch.testing.assert_close(model(ids).logits, expected, atol=1e-4, rtol=1e-4)


def test_the_attention_that_a_published_file_names_is_left_to_the_machine():
    assert SDARConfig.from_dict({"attn_implementation": "flex_attention"})._attn_implementation is None
    assert SDARConfig.from_dict({}, attn_implementation="eager")._attn_implementation == "eager"
