# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Settings: their checks, who wins, and the way to generation_config.json and back."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, GenerationConfig
from transformers.utils import logging

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.demo import STUDENT
from hf_dparallel.generation.configuration import resolve
from hf_dparallel_rules.settings import SETTINGS, SettingError, settings_of

from ..helpers import enable_checkpointing, make_sdar, refuses


PROMPT = torch.tensor([[2, 3, 4]])
SMALL = {"max_new_tokens": 16, "block_length": 8, "stop_at_eos": False, "return_dict_in_generate": True}


def test_a_checkpoint_carries_its_recipe(tiny_llada, tmp_path):
    recipe = DiffusionGenerationConfig(**SMALL, entropy_threshold=1.0)
    tiny_llada.generation_config = recipe
    tiny_llada.save_pretrained(tmp_path)
    # Anyone else's code can read it too, and what a call was resolved to.
    assert GenerationConfig.from_pretrained(tmp_path).entropy_threshold == 1.0
    resolve(tiny_llada).save_pretrained(tmp_path / "resolved")
    assert GenerationConfig.from_pretrained(tmp_path / "resolved").use_cache is False
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert isinstance(loaded.generation_config, DiffusionGenerationConfig)
    by_recipe = loaded.generate(PROMPT)
    by_argument = tiny_llada.generate(PROMPT, **SMALL, entropy_threshold=1.0)
    assert torch.equal(by_recipe.sequences, by_argument.sequences) and by_recipe.nfe.item() < 16


def test_settings_of_the_published_dream_sampler_are_left_out(golden_dir):
    model = AutoModelForMaskedLM.from_pretrained(golden_dir / "dream" / "model")
    assert model.generation_config.settings() == {
        "temperature": 0.0,
        "eos_token_id": 475,
        "pad_token_id": 475,
        "bos_token_id": 475,
    }
    with pytest.raises(ValueError, match="Unknown generation setting.*alg"):
        model.generate(PROMPT, alg="maskgit_plus")


def test_generation_config_given_to_from_pretrained(golden_dir):
    config = DiffusionGenerationConfig(entropy_threshold=0.3)
    model = AutoModelForMaskedLM.from_pretrained(golden_dir / "llada" / "model", generation_config=config)
    assert model.generation_config.entropy_threshold == 0.3


def test_settings_assigned_by_attribute_are_checked(tiny_llada):
    tiny_llada.generation_config.entropy_threshold = 100.0
    assert tiny_llada.generate(PROMPT, **SMALL).nfe.item() == 2
    tiny_llada.generation_config.entropy_treshold = 0.5
    with pytest.raises(ValueError, match=r"Did you mean `entropy_threshold`\?$"):
        tiny_llada.generate(PROMPT, **SMALL)


def test_token_ids_of_numpy_and_torch_become_numbers(tiny_llada):
    settings = {"eos_token_id": [1, 2], "mask_token_id": 63, "suppress_tokens": [5], "bad_words_ids": [[6]]}
    of_libraries = {name: torch.tensor(value) for name, value in settings.items()}
    of_libraries["mask_token_id"] = np.int64(63)
    assert DiffusionGenerationConfig(**of_libraries).settings() == settings
    expected = tiny_llada.generate(PROMPT, **SMALL, **settings)
    assert torch.equal(tiny_llada.generate(PROMPT, **SMALL, **of_libraries).sequences, expected.sequences)


def test_published_file_with_settings_of_another_sampler(tiny_llada, tmp_path):
    tiny_llada.save_pretrained(tmp_path)
    saved = {"repetition_penalty": 1.05, "max_length": 2048, "num_beams": 1, "entropy_threshold": 0.4, "alg": "origin"}
    (tmp_path / "generation_config.json").write_text(json.dumps(saved))
    assert AutoModelForMaskedLM.from_pretrained(tmp_path).generation_config.settings() == {
        "entropy_threshold": 0.4,
        "repetition_penalty": 1.05,
    }
    config = DiffusionGenerationConfig.from_pretrained(tmp_path, confidence_threshold=0.9)
    assert config.commit_rule() == "confidence_threshold"


def test_a_keyword_of_the_model_config_is_no_setting(tiny_llada, tmp_path):
    recipe = DiffusionGenerationConfig(entropy_threshold=0.5)
    tiny_llada.generation_config = recipe
    tiny_llada.save_pretrained(tmp_path)
    for loader in (AutoModelForMaskedLM, type(tiny_llada)):
        model = loader.from_pretrained(tmp_path, attention_dropout=0.1)
        assert model.config.attention_dropout == 0.1 and model.generation_config.settings() == recipe.settings()


@pytest.mark.parametrize("setting", [{"cache_implementation": "static"}, {"top_k": -1}, {"top_p": 1.5}], ids=str)
def test_a_setting_of_a_file_that_cannot_be_names_the_file(tiny_llada, tmp_path, setting):
    tiny_llada.save_pretrained(tmp_path)
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | setting))
    (name,) = setting
    with pytest.raises(SettingError, match=f"^`{name}`.*generation_config.json of '{tmp_path}'"):
        AutoModelForMaskedLM.from_pretrained(tmp_path)


def test_a_damaged_file_is_not_taken_for_a_missing_one(tiny_llada, tmp_path):
    tiny_llada.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(OSError, match="generation_config.json"):
        AutoModelForMaskedLM.from_pretrained(tmp_path)


def test_use_cache_of_a_model_config_is_about_its_training(tmp_path):
    saved = {"_from_model_config": True, "use_cache": False}
    (tmp_path / "generation_config.json").write_text(json.dumps(saved))
    assert DiffusionGenerationConfig.from_pretrained(tmp_path).settings() == {}


def test_one_token_per_pass_is_plain():
    recipe = DiffusionGenerationConfig(
        max_new_tokens=16,
        block_length=8,
        entropy_threshold=0.5,
        max_active_blocks=2,
        revocation_threshold=0.7,
        max_post_steps=2,
        cache_implementation="dual",
        cache_refresh_interval=4,
        temperature=0.7,
        top_p=0.9,
        eos_token_id=3,
    )
    assert recipe.one_token_per_pass().settings() == {
        "max_new_tokens": 16,
        "block_length": 8,
        "denoising_steps": 16,
        **{name: SETTINGS[name].default for name in settings_of("rule options", "blocks", "sampling")},
        **{name: SETTINGS[name].default for name in settings_of("revision") if SETTINGS[name].default is not None},
        "cache_implementation": "none",
        "eos_token_id": 3,
    }


def test_settings_follow_from_a_block_causal_model():
    model = make_sdar(block_size=8)
    resolved = resolve(model)
    assert (resolved.block_length, resolved.cache_implementation) == (8, "block")
    assert resolve(model, resolved).settings() == resolved.settings()
    assert resolve(model, use_cache=False).cache_implementation == "none"
    # What other recipes are compared with has the cache, which is exact.
    assert resolve(model, resolved.one_token_per_pass()).cache_implementation == "block"
    assert resolve(model, model.generation_config, block_length=4).block_length == 4
    enable_checkpointing(model.train())
    assert resolve(model).cache_implementation == "none"


STRICT = {"max_new_tokens": 8, "block_length": 4, "entropy_threshold": 0.5}


@pytest.mark.parametrize(
    ("recipe", "given", "left_out"),
    [
        # The error is about the recipe's setting,
        ({"revocation_threshold": 0.5}, {"cache_implementation": "dual"}, ["revocation_threshold"]),
        ({"editing_threshold": 0.9}, {"soft_threshold": 0.5}, ["editing_threshold", "entropy_threshold"]),
        ({"max_active_blocks": 2, "editing_threshold": 0.9}, {"denoising_steps": 8}, None),
        ({"denoising_steps": 8, "entropy_threshold": None}, {"max_new_tokens": 4}, ["denoising_steps"]),
        # or about the caller's.
        ({"cache_implementation": "dual"}, {"revocation_threshold": 0.5}, ["cache_implementation"]),
        ({"cache_implementation": "dual", "cache_refresh_interval": 2}, {"use_cache": False}, None),
        ({"max_new_tokens": 64}, {"denoising_steps": 8}, ["block_length", "entropy_threshold"]),
    ],
    ids=str,
)
@pytest.mark.parametrize("as_config", [False, True])
def test_a_recipe_gives_way_to_what_contradicts_it(tiny_llada, caplog, recipe, given, left_out, as_config):
    logging.get_logger("hf_dparallel").warning_once.cache_clear()
    recipe = DiffusionGenerationConfig(**STRICT).updated(**recipe)
    tiny_llada.generation_config = recipe
    resolved = resolve(tiny_llada, DiffusionGenerationConfig(**given)) if as_config else resolve(tiny_llada, **given)
    for name, value in DiffusionGenerationConfig(**given).settings().items():
        assert getattr(resolved, name) == value
    if left_out is None:
        return
    for name, value in recipe.settings().items():
        if name not in given:
            assert (getattr(resolved, name) == value) == (name not in left_out), name
    words = [name for name in left_out if f"`{name}={getattr(recipe, name)!r}` gives way" in caplog.text]
    assert len(words) == 1
    assert tiny_llada.generation_config.settings() == recipe.settings()
    assert resolve(tiny_llada, resolved).settings() == resolved.settings()


@pytest.mark.parametrize(
    ("keywords", "config"),
    [
        ({"cache_implementation": "dual", "revocation_threshold": 0.3}, {}),
        ({"cache_implementation": "dual"}, {"revocation_threshold": 0.3}),
        ({"revocation_threshold": 0.3}, {"cache_implementation": "dual"}),
    ],
)
def test_settings_of_the_caller_that_contradict_one_another_are_refused(tiny_llada, keywords, config):
    tiny_llada.generation_config = DiffusionGenerationConfig(**STRICT)
    with refuses("revocation_threshold"):
        resolve(tiny_llada, DiffusionGenerationConfig(**config), **keywords)


def test_a_recipe_that_contradicts_the_model_is_refused():
    model = make_sdar(block_size=4)
    model.generation_config = DiffusionGenerationConfig(**STRICT, revocation_threshold=0.5)
    with refuses("revocation_threshold"):
        resolve(model, max_new_tokens=12)


def test_the_bundled_student_decodes_with_a_cache(caplog):
    """Its recipe verifies commits, which no cache goes with."""
    logging.get_logger("hf_dparallel").warning_once.cache_clear()
    student = AutoModelForMaskedLM.from_pretrained(STUDENT)
    assert student.recipes()[0].revocation_threshold == 0.5
    prompt = torch.tensor([[2, 3, 4]])
    out = student.generate(prompt, max_new_tokens=32, cache_implementation="dual")
    plain = student.generate(prompt, max_new_tokens=32, cache_implementation="dual", revocation_threshold=0.0)
    assert torch.equal(out, plain)
    assert "`revocation_threshold=0.5` gives way" in caplog.text
