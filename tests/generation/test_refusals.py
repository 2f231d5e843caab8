# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What cannot be decoded, or not with these settings, is refused by name before any work is done."""

import importlib
from pathlib import Path

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    CompileConfig,
    GenerationConfig,
)

from hf_dparallel import DiffusionGenerationConfig, enable_diffusion_generation
from hf_dparallel.generation import revision
from hf_dparallel.generation.compatibility import REVISIONS
from hf_dparallel.generation.configuration import resolve
from hf_dparallel.generation.hooks.base import DecodingHook
from hf_dparallel.generation.hooks.standard import make_hooks
from hf_dparallel_rules.commit_rules import RULES

from ..helpers import (
    MASK,
    Recorder,
    RemoteCodeConfig,
    RemoteCodeModel,
    enable_checkpointing,
    make_dream,
    make_llada,
    make_llada2,
    make_nemotron,
    make_sdar,
    refuses,
)


PROMPT = torch.tensor([[2, 3, 4]])
REVISION_FILES = sorted(path for path in Path(revision.__file__).parent.glob("*.py") if path.stem != "__init__")
SMALL = {"max_new_tokens": 8, "block_length": 4}
SHORT = {"max_new_tokens": 16, "block_length": 8}

# Refused in a configuration, too. The setting that the error is about is the last one.
ALONE = [
    ({"entropy_threshold": 0.5, "confidence_threshold": 0.9}, "two commit rules"),
    ({"entropy_threshold": 10**400}, "at most 1,000,000"),
    ({"confidence_threshold": 1.5}, "a probability above 0 and up to 1, got 1.5"),
    ({"temperature": -1.0}, "of at least 0"),
    ({"temperature": float("inf")}, "a number"),
    ({"temperature": 0.0, "do_sample": True}, "samples tokens"),
    ({"do_sample": "yes"}, "True or False"),
    ({"top_p": 0.0}, "above 0"),
    ({"top_k": -1}, "0 or a positive integer"),
    ({"max_new_tokens": 10**12}, "at most 1,000,000"),
    ({"block_length": "32"}, "a positive integer"),
    ({"cache_implementation": "static"}, "one of .*'dual'"),
    ({"cache_implementation": "dual", "use_cache": False}, "contradict each other"),
    ({"repetition_penalty": 0}, "of at least 0.01"),
    ({"bad_words_ids": [[3, 4]]}, "one token id each"),
    ({"suppress_tokens": [True]}, "a list of token ids"),
    ({"mask_token_id": "63"}, "a token id"),
    ({"pad_token_id": [1, 2]}, "a token id"),
    ({"eos_token_id": "</s>"}, "a token id or a list"),
    ({"stop_at_eos": "false"}, "True or False"),
    ({"compile_config": "inductor"}, "CompileConfig"),
    # Of transformers and of others.
    ({"num_beams": 4}, "Remove `num_beams`.$"),
    ({"output_attentions": True}, "no meaning"),
    ({"max_length": 20}, "Use `max_new_tokens` for `max_length`"),
    ({"entropy_treshold": 0.5}, "^Unknown .*: entropy_treshold. Did you mean `entropy_threshold`"),
    ({"": 0.5}, "^Unknown .*: ''"),
    ({"gen_length": 8, "steps": 4}, "Use `max_new_tokens` for `gen_length`. Use `denoising_steps` for `steps`.$"),
    ({"remasking": "low_confidence"}, "Use `denoising_steps`"),
    ({"cfg_scale": 0.0}, "Remove `cfg_scale`.$"),
]


@pytest.mark.parametrize(("settings", "message"), ALONE)
def test_values_that_no_configuration_may_have(tiny_llada, settings, message):
    *_, name = settings
    for use in (lambda: tiny_llada.generate(PROMPT, **settings), lambda: DiffusionGenerationConfig(**settings)):
        with pytest.raises(ValueError, match=message) as caught:
            use()
        assert getattr(caught.value, "setting", name) == name


def test_an_unknown_setting_of_a_plain_configuration(tiny_llada):
    with pytest.raises(ValueError, match="Unknown .*: entropy_treshold"):
        tiny_llada.generate(PROMPT, GenerationConfig(entropy_treshold=0.5))


def not_of_this_package():
    model = make_llada()
    model.is_native = False
    return model


def in_training():
    model = make_llada().train()
    enable_checkpointing(model)
    return model


def of_another_class():
    return enable_diffusion_generation(RemoteCodeModel(RemoteCodeConfig()), MASK, shift_logits=True)


def of_a_class_that_hides_nothing():
    model = of_another_class()
    model.takes_visibility = False
    return model


BERT = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def bert():
    model = BertForMaskedLM(BertConfig(**BERT, max_position_embeddings=16))
    return enable_diffusion_generation(model.eval(), MASK)


def make_routed_llada2():
    return make_llada2(expert_capacity=3)


INFILLING = {"max_new_tokens": 0}
COMPILED = {"compile_config": CompileConfig()}
VERIFIED = {"entropy_bound": 2.0, "revocation_threshold": 0.9}
# The setting that the error is about is the last one, and what tells its rule from the others of this setting.
WRONG_TOGETHER = [
    (make_sdar, {"cache_implementation": "dual"}, "SDAR"),
    (make_sdar, {"cache_refresh_interval": 2}, "approximate"),
    (make_llada, {"block_origin": "answer"}, "LLaDA"),
    (make_routed_llada2, {"block_origin": "answer"}, "experts"),
    *((make, INFILLING, "later blocks") for make in (make_sdar, make_nemotron)),
    (make_sdar, {"input_ids": PROMPT} | INFILLING, "later blocks"),
    *((make, {"suffix_length": 3}, "computes none") for make in (make_sdar, make_nemotron)),
    (make_nemotron, {"entropy_threshold": 1.0, "max_active_blocks": 2}, "is not decided"),
    (make_nemotron, {"cache_implementation": "prefix"}, "attention of Nemotron"),
    (make_llada, {"cache_implementation": "block"}, "LLaDA"),
    (make_llada, {"cache_refresh_interval": 2}, 'needs the cache "prefix"'),
    (make_llada, SHORT | {"denoising_steps": 1}, "at least 2, .* Use denoising_steps=2"),
    (make_llada, SHORT | {"denoising_steps": 32}, "at most .* Use denoising_steps=16"),
    (not_of_this_package, {"cache_implementation": "dual"}, "this package"),
    (not_of_this_package, COMPILED, "this package"),
    (in_training, {"cache_implementation": "dual"}, "in training"),
    (make_llada, {"revocation_threshold": 0.5}, "needs a commit rule"),
    (make_llada, COMPILED | VERIFIED, "compile_config"),
    (of_a_class_that_hides_nothing, VERIFIED, "hides tokens"),
    (make_sdar, VERIFIED, "costs what it saves"),
    (make_llada, {"cache_implementation": "dual"} | VERIFIED, "costs what it saves"),
    (
        make_llada,
        {"entropy_bound": 1.0, "revocation_threshold": 0.5, "editing_threshold": 0.5},
        "revocation_threshold",
    ),
    (make_llada, COMPILED | {"suffix_length": 3}, "compile_config"),
    (make_llada, {"editing_threshold": 0.5, "soft_threshold": 0.5}, "editing_threshold"),
    (make_llada, {"revocation_threshold": 0.5, "soft_threshold": 0.5}, "revocation_threshold"),
    (make_llada, {"soft_threshold": 0.5, "entropy_threshold": 0.5}, "two commit rules"),
    (make_llada, COMPILED | {"soft_threshold": 0.5}, "compile_config"),
    (of_another_class, {"soft_threshold": 0.5}, "RemoteCodeModel"),
    (make_llada, INFILLING | {"denoising_steps": 8}, "max_new_tokens"),
    (make_llada, INFILLING | {"stop_strings": ["a"]}, "max_new_tokens"),
    (make_llada, {"output_certainty": True}, "return_dict_in_generate"),
    (bert, {"max_new_tokens": 14}, "of 3 are more than the 16 positions of BertForMaskedLM"),
    # Of the prompt.
    (make_llada, {"input_ids": None}, "got None"),
    (make_llada, {"input_ids": torch.tensor([2, 3])}, r"\(2,\)"),
    (make_llada, {"input_ids": [[2, 3]]}, "return_tensors='pt'"),
    (make_llada, {"attention_mask": torch.ones(1, 2)}, r"\(1, 2\)"),
    (make_llada, {"input_ids": PROMPT} | INFILLING, "row 0 of `input_ids` has none"),
    (make_llada, {"generation_config": SMALL}, r"\*\*settings"),
    (make_llada, {"generator": 5}, "one for each of 1 rows"),
    # Of its vocabulary.
    (make_llada, {"mask_token_id": 99}, "vocabulary of 64"),
    (make_llada, {"eos_token_id": [1, 63], "mask_token_id": 63}, "end or padding token"),
    (make_llada, {"pad_token_id": 63, "mask_token_id": 63}, "end or padding token"),
    (make_llada, {"eos_token_id": 10**30}, "vocabulary"),
    (make_llada, {"suppress_tokens": [64]}, "vocabulary of 64"),
    (make_llada, {"stop_strings": ["a"]}, "tokenizer"),
]


@pytest.mark.parametrize(("make", "settings", "rule"), WRONG_TOGETHER)
def test_settings_that_do_not_go_together_or_with_the_model(make, settings, rule):
    *_, name = settings
    prompt = torch.tensor([[2, MASK]]) if settings.get("max_new_tokens") == 0 else PROMPT
    with refuses(name, rule):
        make().generate(**({"input_ids": prompt} | SMALL | settings))


BAD_INPUTS = [
    ({"inputs": PROMPT}, "same argument"),
    ({"token_type_ids": torch.ones(1, 3)}, "`token_type_ids`"),
    ({"generator": [torch.Generator()] * 2}, "`generator` .* each of 1 rows"),
    ({"input_ids": torch.ones(2, 3).long(), "streamer": Recorder()}, "`streamer` .* 2"),
    ({"input_ids": torch.zeros(1, 0, dtype=torch.long)}, r"`input_ids` .* at least one token, got \(1, 0\)"),
    ({"input_ids": torch.tensor([[2, 64]])}, r"`input_ids\[0, 1\]` is 64"),
    ({"input_ids": torch.tensor([[2, -1]])}, r"`input_ids\[0, 1\]` is -1"),
    ({"attention_mask": torch.tensor([[1, 1, 0]])}, "row 0.*side='left'"),
    ({"input_ids": torch.eye(2).long(), "attention_mask": torch.tensor([[1, 1], [0, 0]])}, "row 1"),
    ({"input_ids": torch.tensor([[2, MASK]])}, r"\(63\) in row 0.* `max_new_tokens=0`"),
    ({"suppress_tokens": [*range(60)], "bad_words_ids": [[60], [61], [62]]}, "leaves no token"),
    ({"attention_masks": PROMPT}, r"Unknown .* attention_masks"),
    ({"synced_gpus": True}, r"Unknown .* synced_gpus"),
    ({"input_ids": torch.tensor([[MASK]]), **INFILLING, "stopping_criteria": [print]}, "`stopping_criteria`"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_INPUTS)
def test_bad_input(tiny_llada, arguments, message):
    with pytest.raises(ValueError, match=message):
        tiny_llada.generate(**({"input_ids": PROMPT} | SMALL | arguments))


@pytest.mark.parametrize(
    "settings", [{"batch_size": 0}, {"block_length": 0}, {"temperature": 1.0, "num_return_sequences": 2}]
)
def test_many_prompts_are_refused_at_once(tiny_llada, settings):
    with refuses([*settings][-1]):
        tiny_llada.generate_many([[2]], **settings)


def test_calls_of_other_decoding_are_refused(tiny_llada):
    with pytest.raises(NotImplementedError, match="Use `generate_many`"):
        tiny_llada.generate_batch([[2]])


def test_no_mask_token():
    model = make_dream(mask_token_id=None)
    with refuses("mask_token_id"):
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
    with pytest.raises(FloatingPointError, match="NaN at step 2 of row 1"):
        model.generate(torch.tensor([[2, 3], [4, 5]]), stop_at_eos=False, **SMALL)


@pytest.mark.parametrize("file", REVISION_FILES, ids=lambda file: file.stem)
def test_every_way_to_revise_is_made_and_excludes_the_others(file):
    module = importlib.import_module(f"hf_dparallel.generation.revision.{file.stem}")
    hooks = [cls for cls in vars(module).values() if getattr(cls, "__module__", None) == module.__name__]
    hooks = [cls for cls in hooks if isinstance(cls, type) and issubclass(cls, DecodingHook)]
    assert hooks
    for hook in hooks:
        assert hook.revises
        assert hook.setting in REVISIONS
        rule = {} if hook.setting in RULES else {"entropy_threshold": 0.5}
        config = resolve(make_llada(), **{hook.setting: 0.5}, **rule)
        assert [type(made) for made in make_hooks(config) if made.revises] == [hook]
