# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What cannot be decoded, or not with these settings, is refused by name before any work is done."""

import pytest
import torch
from transformers import CompileConfig, GenerationConfig, MaxLengthCriteria, TopKLogitsWarper

from hf_dparallel import DiffusionGenerationConfig, enable_diffusion_generation
from hf_dparallel_rules.settings import SettingError

from ..helpers import MASK, Recorder, RemoteCodeConfig, RemoteCodeModel, make_llada, make_llada2, make_sdar


PROMPT = torch.tensor([[2, 3, 4]])
SMALL = {"max_new_tokens": 8, "block_length": 4}
SHORT = {"max_new_tokens": 16, "block_length": 8}

# The setting that the error is about is the last one.
BAD_VALUES = [
    {"entropy_threshold": 0.5, "confidence_threshold": 0.9},
    {"entropy_threshold": -0.1},
    {"entropy_threshold": 10**400},
    {"confidence_threshold": 1.5},
    {"confidence_threshold": 0},
    {"temperature": -1.0},
    {"temperature": float("inf")},
    {"top_p": 0.0},
    {"top_k": -1},
    {"max_new_tokens": 10**12},
    {"max_new_tokens": 10**5000},
    {"max_new_tokens": -1},
    {"block_length": "32"},
    SHORT | {"denoising_steps": 1},
    SHORT | {"denoising_steps": 32},
    {"cache_implementation": "static"},
    {"num_beams": 4},
    {"max_length": 20},
    {"output_attentions": True},
    {"repetition_penalty": 0},
    {"bad_words_ids": [[3, 4]]},
    {"bad_words_ids": [[True]]},
    {"suppress_tokens": [True]},
    {"suppress_tokens": True},
    {"cache_implementation": "dual", "use_cache": False},
    {"mask_token_id": True},
    {"mask_token_id": "63"},
    {"pad_token_id": [1, 2]},
    {"eos_token_id": "</s>"},
    {"stop_at_eos": "false"},
    {"temperature": 0.0, "do_sample": True},
]


@pytest.mark.parametrize("settings", BAD_VALUES)
def test_bad_values(tiny_llada, settings):
    *_, name = settings
    for use in (lambda: tiny_llada.generate(PROMPT, **settings), lambda: DiffusionGenerationConfig(**settings)):
        with pytest.raises(SettingError) as caught:
            use()
        assert caught.value.setting == name and str(caught.value).startswith(f"`{name}")


@pytest.mark.parametrize(("name", "shown"), [("entropy_treshold", "entropy_treshold"), ("", "''")])
def test_unknown_settings(tiny_llada, name, shown):
    plain = GenerationConfig(**{name: 0.5})
    for use in (tiny_llada.generate, DiffusionGenerationConfig, lambda **settings: tiny_llada.generate(PROMPT, plain)):
        with pytest.raises(ValueError, match=rf"Unknown generation setting\(s\): {shown}"):
            use(**{name: 0.5})


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"max_length": 20}, "Use `max_new_tokens=20 - prompt_length`"),
        ({"gen_length": 8, "steps": 4}, "Use `max_new_tokens` for `gen_length`. Use `denoising_steps` for `steps`.$"),
        ({"threshold": 0.9}, "Use `confidence_threshold`"),
        ({"remasking": "low_confidence"}, "Use `denoising_steps` or another commit rule"),
        ({"cfg_scale": 0.0}, "Remove `cfg_scale`.$"),
        ({"num_beams": 4}, "Remove `num_beams`.$"),
        (SHORT | {"denoising_steps": 1}, "at least 2, .* Use denoising_steps=2"),
        (SHORT | {"denoising_steps": 32}, "at most .* Use denoising_steps=16"),
        ({"max_new_tokens": 10**5000}, r"at most 1,000,000\), got a number of thousands of digits"),
    ],
)
def test_errors_say_what_helps(tiny_llada, settings, remedy):
    for use in (lambda: tiny_llada.generate(PROMPT, **settings), lambda: DiffusionGenerationConfig(**settings)):
        with pytest.raises(ValueError, match=remedy):
            use()


def not_of_this_package():
    model = make_llada()
    model.is_native = False
    return model


def in_training():
    model = make_llada().train()
    model.activation_checkpointing_enable()
    return model


def of_another_class():
    return enable_diffusion_generation(RemoteCodeModel(RemoteCodeConfig()), MASK, shift_logits=True)


def of_a_class_that_hides_nothing():
    model = of_another_class()
    model.takes_visibility = False
    return model


INFILLING = {"max_new_tokens": 0}
COMPILED = {"compile_config": CompileConfig()}
VERIFIED = {"entropy_bound": 2.0, "revocation_threshold": 0.9}
# The setting that the error is about is the last one.
WRONG_TOGETHER = [
    (make_sdar, {"cache_implementation": "dual"}, "is not for the attention of SDAR"),
    (make_sdar, {"cache_refresh_interval": 2}, "makes an approximation better"),
    (make_sdar, {"block_length": 129}, "is more than the 128 tokens"),
    (make_sdar, INFILLING, "fills in mask tokens, and SDAR"),
    (make_sdar, {"input_ids": PROMPT} | INFILLING, "fills in mask tokens, and SDAR"),
    (make_sdar, {"suffix_length": 3}, "is block-causal: it computes none of them anyway"),
    (make_llada, {"cache_implementation": "block"}, "is not for the attention of LLaDA"),
    (make_llada, {"cache_refresh_interval": 2}, "needs `cache_implementation`"),
    (not_of_this_package, {"cache_implementation": "dual"}, "needs a model of this package"),
    (not_of_this_package, COMPILED, "needs a model of this package"),
    (in_training, {"cache_implementation": "dual"}, r"needs `model.eval\(\)`: in training"),
    (make_llada, {"revocation_threshold": 0.5}, "needs a commit rule with a threshold"),
    (make_llada, COMPILED | VERIFIED, "does not go with `compile_config=CompileConfig"),
    (of_a_class_that_hides_nothing, VERIFIED, "hides tokens from some places"),
    (
        make_llada,
        {"entropy_bound": 1.0, "revocation_threshold": 0.5, "editing_threshold": 0.5},
        "does not go with `rev",
    ),
    (make_llada, COMPILED | {"suffix_length": 3}, "does not go with `compile_config=CompileConfig"),
    (make_llada, {"soft_threshold": 0.5, "editing_threshold": 0.5}, "does not go with `soft_threshold=0.5`"),
    (make_llada, {"revocation_threshold": 0.5, "soft_threshold": 0.5}, "does not go with `revocation_threshold=0.5`"),
    (make_llada, {"soft_threshold": 0.5, "entropy_threshold": 0.5}, "are two commit rules"),
    (make_llada, COMPILED | {"soft_threshold": 0.5}, "does not go with `compile_config=CompileConfig"),
    (of_another_class, {"soft_threshold": 0.5}, "feeds mixtures of embeddings, and RemoteCodeModel"),
    (make_llada, INFILLING | {"denoising_steps": 8}, "needs `max_new_tokens` other than 0"),
    (make_llada, INFILLING | {"stop_strings": ["a"]}, "needs `max_new_tokens` other than 0"),
    (make_llada, INFILLING | {"max_time": 5.0}, "needs `max_new_tokens` other than 0"),
    (make_llada, INFILLING | {"min_new_tokens": 1}, "needs `max_new_tokens` other than 0"),
    (make_llada, {"num_return_sequences": 2}, "needs `temperature` other than 0"),
    (make_llada, {"synced_gpus": True}, "is for processes that share the weights"),
    (make_llada, {"compile_config": "inductor"}, "must be a transformers.CompileConfig"),
    (make_llada, {"output_certainty": True}, "needs `return_dict_in_generate"),
    (make_llada, {"confidence_threshold": 0.9, "engine": "sglang"}, "does not know LLaDA"),
    (make_llada2, {"confidence_threshold": 0.9, "engine": "lmdeploy"}, "does not know LLaDA2"),
]


@pytest.mark.parametrize(("make", "settings", "rule"), WRONG_TOGETHER)
def test_settings_that_do_not_go_together_or_with_the_model(make, settings, rule):
    *_, name = settings
    prompt = torch.tensor([[2, MASK]]) if "max_new_tokens" in settings else PROMPT
    with pytest.raises(ValueError, match=rf"^`{name}.*{rule}"):
        make().generate(**({"input_ids": prompt} | SMALL | settings))


BAD_INPUTS = [
    ({}, r"`input_ids` must be a tensor .*got None. Pass `\*\*inputs`"),
    ({"input_ids": torch.tensor([2, 3])}, r"`input_ids` must be a tensor .* got \(2,\)"),
    ({"input_ids": [[2, 3]]}, r"`input_ids` must be a tensor .*return_tensors='pt'"),
    ({"input_ids": PROMPT, "inputs": PROMPT}, "are the same argument"),
    ({"input_ids": PROMPT, "attention_mask": [[1, 1, 1]]}, "`attention_mask` must be a tensor of the shape"),
    ({"input_ids": PROMPT, "attention_mask": torch.ones(1, 2)}, r"`attention_mask` .*\(1, 3\), got \(1, 2\)"),
    ({"input_ids": PROMPT, "generation_config": SMALL}, r"must be a `GenerationConfig`, .*\*\*settings"),
    ({"input_ids": PROMPT, "stopping_criteria": MaxLengthCriteria(6)}, "`stopping_criteria` must be a list, got <"),
    ({"input_ids": PROMPT, "logits_processor": TopKLogitsWarper(6)}, r"must be a list, .*`logits_processor=\[...\]`"),
    ({"input_ids": PROMPT, "token_type_ids": torch.ones(1, 3)}, "`token_type_ids` must be all 0"),
    ({"input_ids": PROMPT, "generator": 5}, "one torch.Generator or one per row, got 5"),
    ({"input_ids": PROMPT, "generator": [5]}, r"one torch.Generator or one per row, got \[5\]"),
    ({"input_ids": PROMPT, "generator": [torch.Generator()] * 2}, "one per row, got 2 for 1 rows"),
    ({"input_ids": PROMPT, "streamer": object()}, "`streamer` must have the methods `put` and `end`, .* object"),
    ({"input_ids": torch.ones(2, 3).long(), "streamer": Recorder()}, "`streamer` works with one prompt only, .* 2"),
    ({"input_ids": torch.zeros(1, 0, dtype=torch.long)}, r"`input_ids` is empty, of shape \(1, 0\)"),
    ({"input_ids": torch.tensor([[2, 64]])}, r"`input_ids\[0, 1\]` is 64, .* 64 tokens. Use the tokenizer"),
    ({"input_ids": torch.tensor([[2, -1]])}, r"`input_ids\[0, 1\]` is -1, outside"),
    ({"input_ids": PROMPT.bool()}, "token ids .integers., got torch.bool"),
    ({"input_ids": PROMPT, "attention_mask": torch.tensor([[1, 1, 0]])}, "Row 0 is padded on the right .*side='left'"),
    ({"input_ids": torch.eye(2).long(), "attention_mask": torch.tensor([[1, 1], [0, 0]])}, "0 everywhere in row 1"),
    ({"input_ids": torch.tensor([[2, MASK]])}, r"mask token \(63\) in row 0, and 8 .* Set `max_new_tokens=0`"),
    ({"input_ids": PROMPT, "max_new_tokens": 0}, r"fills in the masks of the prompt, .* has none \(token 63\)"),
    ({"input_ids": PROMPT, "mask_token_id": 99}, "`mask_token_id=99` is outside the model's vocabulary of 64"),
    ({"input_ids": PROMPT, "eos_token_id": [1, 63]}, "`mask_token_id=63` is the end or padding token"),
    ({"input_ids": PROMPT, "pad_token_id": 63}, "`mask_token_id=63` is the end or padding token"),
    ({"input_ids": PROMPT, "eos_token_id": 10**30}, "`eos_token_id=10{30}` is outside the model's vocabulary"),
    ({"input_ids": PROMPT, "suppress_tokens": [64]}, "`suppress_tokens=64` is outside .* Remove it"),
    ({"input_ids": PROMPT, "bad_words_ids": [[-1]]}, "`bad_words_ids=-1` is outside .* Remove it"),
    ({"input_ids": PROMPT, "suppress_tokens": [*range(60)], "bad_words_ids": [[60], [61], [62]]}, "leave no token"),
    ({"input_ids": PROMPT, "min_new_tokens": 9}, "`min_new_tokens=9` is more than `max_new_tokens=8`"),
    ({"input_ids": PROMPT, "stop_strings": ["a"]}, r"`stop_strings=\['a'\]` needs the tokenizer"),
    ({"input_ids": PROMPT, "attention_masks": PROMPT}, r"Unknown generation setting\(s\): attention_masks"),
    ({"input_ids": torch.tensor([[MASK]]), **INFILLING, "stopping_criteria": [print]}, "`stopping_criteria` end"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_INPUTS)
def test_bad_input(tiny_llada, arguments, message):
    with pytest.raises(ValueError, match=message):
        tiny_llada.generate(**(SMALL | arguments))


@pytest.mark.parametrize(
    "settings", [{"batch_size": 0}, {"block_length": 0}, {"temperature": 1.0, "num_return_sequences": 2}]
)
def test_many_prompts_are_refused_at_once(tiny_llada, settings):
    with pytest.raises(SettingError) as caught:
        tiny_llada.generate_many([[2]], **settings)
    assert caught.value.setting == [*settings][-1]


def test_calls_of_other_decoding_are_refused(tiny_llada):
    with pytest.raises(NotImplementedError, match="`generate_batch` decodes from left to right. Use `generate_many`"):
        tiny_llada.generate_batch([[2]])


def test_no_mask_token():
    model = make_llada(mask_token_id=None)
    with pytest.raises(ValueError, match="`mask_token_id` must be set.*Pass `mask_token_id=` to `generate`"):
        model.generate(PROMPT, **SMALL)
    assert model.generate(PROMPT, mask_token_id=63, **SMALL).shape == (1, 11)


def test_nan_logits_name_the_step_and_the_row():
    model, calls = make_llada(), []

    def spoil(module, args, output):
        calls.append(len(output))
        if len(calls) == 3:
            output[1] = torch.nan
        return output

    model.lm_head.register_forward_hook(spoil)
    with pytest.raises(FloatingPointError, match=r"logits of the model are NaN at step 2 of row 1. Check the weights"):
        model.generate(torch.tensor([[2, 3], [4, 5]]), stop_at_eos=False, **SMALL)
