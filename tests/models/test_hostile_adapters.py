# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Adapters of strangers: what they may ask for, and what is refused before it costs anything."""

import json
import time

import pytest
import torch

from hf_dparallel.generation.configuration import resolve

from ..helpers import make_llada
from .helpers import INPUT_IDS, adapted, edit_config, logits, save_adapter


ENDLESS = "([a-z0-9_.]+)+!"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"r": 10**9}, "the rank 1000000000 is larger than all of its weights"),
        ({"rank_pattern": {"layers.0.self_attn.q_proj": 10**9}}, "the rank 1000000000"),
        ({"r": "x", "modules_to_save": [5]}, "does not fit LLaDAForMaskedDiffusion"),
        ({"trainable_token_indices": {"embed_tokens": 5}}, "does not fit LLaDAForMaskedDiffusion"),
        ({"r": 5}, r"size mismatch for model\.layers\.0"),
        ({"target_modules": ["q_proj", "o_proj", "down_proj", "v_proj"]}, "4 weights are wanted.*v_proj"),
        ({"rank_pattern": {ENDLESS: 2}}, "`rank_pattern` must have at most 500 names of modules"),
        ({"alpha_pattern": {ENDLESS: 2}}, "`alpha_pattern` must have"),
        ({"modules_to_save": [ENDLESS]}, "`modules_to_save` must have"),
        ({"target_parameters": ["a"] * 1000}, "`target_parameters` must have"),
        ({"layer_replication": [[0, 1]] * 20_000}, "`layer_replication` is not supported"),
        ({"megatron_config": {"x": 1}, "megatron_core": "os"}, "`megatron_config` is not supported"),
        ({"kasa_config": {}, "alora_invocation_tokens": [3]}, "`alora_invocation_tokens` is not supported"),
        ({"modules_to_save": ["lm_head"]}, "`modules_to_save` names 'lm_head', which lacks weights"),
        ({"modules_to_save": ["model"]}, "`modules_to_save` names 'model', which lacks weights"),
        ({"trainable_token_indices": {"embed_tokens": [0, 1]}}, "`trainable_token_indices` names 2 tokens"),
        ({"trainable_token_indices": [0, 1]}, "`trainable_token_indices` names 2 tokens"),
        ({"target_parameters": ["lm_head.weight"]}, "2 weights are wanted by its configuration"),
        ({"use_dora": True}, "6 weights are wanted by its configuration"),
        ({"lora_bias": True}, "6 weights are wanted by its configuration"),
        ({"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 10**9}, "does not support prompt learning"),
        *(
            ({"init_lora_weights": name, "loftq_config": {"loftq_bits": 4}}, f"with `init_lora_weights='{name}'`")
            for name in ("pissa", "pissa_niter_4", "olora", "OLoRA", "corda", "loftq", "lora_ga")
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_cannot_be_loaded_is_refused_at_once_and_the_model_stays_as_it_was(tmp_path, settings, message):
    model = adapted(save_adapter(tmp_path / "good", recipe={"entropy_threshold": 0.1}), adapter_name="good")
    expected = logits(model)
    before = state_of(model)
    edit_config(save_adapter(tmp_path / "hostile", seed=1), **settings)
    start = time.process_time()
    with pytest.raises(ValueError, match=message):
        model.load_adapter(str(tmp_path / "hostile"), "hostile")
    assert time.process_time() - start < 1
    assert state_of(model) == before
    assert torch.equal(logits(model), expected) and resolve(model).entropy_threshold == 0.1
    model.disable_adapters()
    assert torch.equal(logits(model), logits(make_llada()))
    model.enable_adapters()
    model.load_adapter(str(save_adapter(tmp_path / "another", seed=1)), "another")
    assert torch.equal(logits(model), logits(adapted(tmp_path / "another")))


def state_of(model) -> list:
    """All that modules hold, dictionaries by what is in them, and what is trained."""
    return [
        [(name, dict(value) if isinstance(value, dict) else value) for name, value in vars(module).items()]
        for module in model.modules()
    ] + [parameter.requires_grad for parameter in model.parameters()]


@pytest.mark.parametrize("setting", ["target_modules", "exclude_modules"])
@pytest.mark.parametrize("value", [ENDLESS, [*map(str, range(10**5))]], ids=["endless", "many"])
def test_the_weights_say_which_modules_a_pattern_means(tmp_path, setting, value):
    save_adapter(tmp_path)
    expected = logits(adapted(tmp_path))
    edit_config(tmp_path, **{setting: value})
    start = time.process_time()
    assert torch.equal(logits(adapted(tmp_path)), expected)
    assert time.process_time() - start < 1


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
@pytest.mark.parametrize("value", ["-1", "1" + "0" * 400, "Infinity", "NaN", '"x"'])
def test_numbers_without_sense_in_a_recipe_are_refused(tmp_path, setting, value):
    save_adapter(tmp_path)
    (tmp_path / "generation_config.json").write_text(f'{{"{setting}": {value}}}')
    with pytest.raises(ValueError, match=f"`{setting}` must be"):
        adapted(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"peft_type": "EVIL"}'])
def test_a_broken_configuration_is_named(tmp_path, text):
    save_adapter(tmp_path)
    (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(ValueError, match=r"adapter_config\.json .* is damaged"):
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
    with pytest.raises(FileNotFoundError, match=r"no adapter_config\.json"):
        adapted(tmp_path)
