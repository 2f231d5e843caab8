# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Adapters of strangers: what they may ask for, and what is refused before it costs anything."""

import json

import pytest
import torch

from hf_dparallel.generation.configuration import resolve

from ..helpers import make_llada
from .test_adapters import INPUT_IDS, adapted, edit_config, logits, save_adapter


def test_a_rank_that_the_weights_do_not_have_is_refused_before_memory_is_taken(tmp_path):
    save_adapter(tmp_path)
    edit_config(tmp_path, r=10**9)
    with pytest.raises(ValueError, match=r"rank of .*down_proj is 1000000000, and its weights have rank 4"):
        adapted(tmp_path)
    edit_config(tmp_path, r=4, rank_pattern={"layers.0.self_attn.q_proj": 10**9})
    with pytest.raises(ValueError, match=r"rank of .*layers\.0\.self_attn\.q_proj is 1000000000"):
        adapted(tmp_path)


def test_ranks_of_modules_without_weights_take_no_memory(tmp_path):
    save_adapter(tmp_path)
    edit_config(
        tmp_path,
        target_modules=["q_proj", "o_proj", "down_proj", "v_proj"],
        rank_pattern={"v_proj": 10**9},
    )
    with pytest.raises(ValueError, match="v_proj"):
        adapted(tmp_path)


def test_a_rank_that_no_module_has_takes_no_memory(tmp_path):
    """Where each module has a rank of its own, nothing uses the common one."""
    save_adapter(tmp_path, rank_pattern=dict.fromkeys(["q_proj", "o_proj", "down_proj"], 4))
    expected = logits(adapted(tmp_path))
    edit_config(tmp_path, r=10**6, lora_alpha=8, alpha_pattern=dict.fromkeys(["q_proj", "o_proj", "down_proj"], 8))
    model = adapted(tmp_path)
    assert torch.equal(logits(model), expected)
    assert model.peft_config["default"].r == 4


def test_ranks_by_module_load(tmp_path):
    save_adapter(tmp_path / "a", rank_pattern={"q_proj": 2, "layers.1.self_attn.o_proj": 8})
    assert not torch.equal(logits(adapted(tmp_path / "a")), logits(make_llada()))


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"max_new_tokens": 10**6, "block_length": 8}, {"block_length": 8}),
        ({"max_new_tokens": 64, "return_dict_in_generate": True, "output_certainty": True}, {"max_new_tokens": 64}),
        ({"entropy_threshold": 0.5, "num_return_sequences": 1000}, {"entropy_threshold": 0.5}),
        ({"mask_token_id": 5, "eos_token_id": [6], "pad_token_id": 7}, {}),
    ],
)
def test_a_recipe_says_how_answers_are_decoded_and_nothing_else(tmp_path, settings, kept):
    save_adapter(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    model = adapted(tmp_path)
    own = resolve(make_llada())
    assert resolve(model).settings() == resolve(make_llada(), **kept).settings()
    assert (resolve(model).mask_token_id, resolve(model).eos_token_id) == (own.mask_token_id, own.eos_token_id)
    assert isinstance(model.generate(INPUT_IDS, max_new_tokens=8, block_length=8), torch.Tensor)


@pytest.mark.parametrize("setting", ["max_new_tokens", "entropy_threshold", "temperature"])
@pytest.mark.parametrize("value", ["1" + "0" * 400, "Infinity", "NaN", '"x"'])
def test_numbers_without_sense_in_a_recipe_are_refused(tmp_path, setting, value):
    save_adapter(tmp_path)
    (tmp_path / "generation_config.json").write_text(f'{{"{setting}": {value}}}')
    with pytest.raises(ValueError, match=f"`{setting}` must be"):
        adapted(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"peft_type": "EVIL"}'])
def test_a_broken_configuration_is_named(tmp_path, text):
    save_adapter(tmp_path)
    (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(ValueError, match=r"adapter_config\.json of '.*' is damaged, or not one of PEFT"):
        adapted(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "1", "{", "[" * 100_000])
def test_a_broken_recipe_is_named(tmp_path, text):
    save_adapter(tmp_path)
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises((OSError, ValueError), match=r"generation_config\.json"):
        adapted(tmp_path)


@pytest.mark.parametrize("content", [b"", b"root:x:0:0:root:/root:/bin/bash\n", (2**62).to_bytes(8, "little") + b"{}"])
def test_damaged_weights_are_named(tmp_path, content):
    save_adapter(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(content)
    with pytest.raises(OSError, match=r"adapter_model\.safetensors` is damaged"):
        adapted(tmp_path)


def test_a_folder_without_an_adapter_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"The folder `.*` holds no adapter: it has no adapter_config\.json"):
        adapted(tmp_path)
