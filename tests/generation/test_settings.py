# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""One table of settings, and one way in which the settings of caller, adapter and model become one."""

import inspect
import json
import pickle

import pytest
import torch
from transformers import GenerationConfig, pipeline

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.generation.configuration import resolve
from hf_dparallel.generation.mixin import DiffusionGenerationMixin
from hf_dparallel_rules.settings import GROUPS, SETTINGS, SettingError

from ..helpers import make_llada, make_tokenizer


PROMPT = torch.tensor([[2, 3, 4]])


class WithAdapter(DiffusionGenerationMixin):
    """A model as `resolve` sees it: its config and its recipes."""

    is_native = True
    training = False
    takes_visibility = True

    def __init__(self, recipes, attention="full"):
        self.config = make_llada().config
        self.config.block_length = 4
        self.attention = attention
        self._recipes = recipes

    def recipes(self):
        return self._recipes


DUAL = {"cache_implementation": "dual", "cache_refresh_interval": 4, "suffix_length": 8}
PLAIN = {"max_active_blocks": 1, "revocation_threshold": 0.0}
SEVERAL = {"entropy_threshold": 0.5, "max_active_blocks": 2, "revocation_threshold": 0.9}
# Keywords, given configuration, recipe of the adapter, recipe of the model; and what they come to.
MERGED = [
    ([{}, {}, {"entropy_threshold": 0.5}, {"entropy_threshold": 0.2}], {"entropy_threshold": 0.5}),
    ([{"entropy_threshold": None}, {}, {}, {"entropy_threshold": 0.2}], {"entropy_threshold": 0.2}),
    ([{"block_length": 32}, {"block_length": 8}, {}, {}], {"block_length": 32}),
    # A rule replaces a rule, and a schedule what needs a threshold.
    ([{"denoising_steps": 9}, {}, SEVERAL, {}], {"denoising_steps": 9, "entropy_threshold": None} | PLAIN),
    ([{"confidence_threshold": 0.9}, {"denoising_steps": 9}, {}, SEVERAL], {"max_active_blocks": 2}),
    ([{}, {"entropy_budget": 0.1}, {"denoising_steps": 9}, {}], {"denoising_steps": None, "entropy_budget": 0.1}),
    # A cache replaces a cache with its options. `True` is passed by callers of all models.
    ([{"use_cache": False}, {}, DUAL, {}], {"cache_implementation": "none", "suffix_length": None}),
    ([{"cache_implementation": "prefix"}, DUAL, {}, {}], {"cache_refresh_interval": None, "suffix_length": None}),
    ([{"use_cache": True}, {}, DUAL, {}], DUAL),
    ([{"cache_implementation": "dual"}, {"use_cache": False}, {}, {}], {"cache_implementation": "dual"}),
    # Words of transformers about sampling.
    ([{"do_sample": True}, {}, {"temperature": 0.7}, {}], {"temperature": 0.7}),
    ([{"do_sample": True}, {}, {"temperature": 0.0}, {}], {"temperature": 1.0}),
    (
        [{}, GenerationConfig(do_sample=False, num_beams=1, use_cache=True), {"temperature": 0.7}, {}],
        {"temperature": 0},
    ),
    ([{"temperature": 0.7}, {"do_sample": False}, {}, {}], {"temperature": 0.7}),
]


@pytest.mark.parametrize(("layers", "expected"), MERGED)
def test_the_first_layer_that_sets_a_setting_wins(tmp_path, layers, expected):
    keywords, given, *recipes = layers
    given = given if isinstance(given, GenerationConfig) else DiffusionGenerationConfig(**given)
    recipes = [DiffusionGenerationConfig(**recipe) for recipe in recipes]
    before = [recipe.to_dict() for recipe in recipes]
    model = WithAdapter(recipes)
    resolved = resolve(model, given, **keywords)
    assert {name: getattr(resolved, name) for name in expected} == expected
    assert [recipe.to_dict() for recipe in recipes] == before
    # A resolved configuration resolves to itself, even after it was saved, and on top of anything.
    resolved.save_pretrained(tmp_path)
    loaded = DiffusionGenerationConfig.from_pretrained(tmp_path)
    for again in (resolve(model, resolved), resolve(model, loaded), resolve(model, **resolved.settings())):
        assert again.settings() == resolved.settings()


@pytest.mark.parametrize("recipe", [{}, {"temperature": 0.0}, {"do_sample": False}], ids=str)
def test_pipelines_sample_only_where_the_recipe_does(tiny_llada, recipe):
    common = {"entropy_threshold": 0.5, "max_new_tokens": 20, "block_length": 8}
    tiny_llada.generation_config = DiffusionGenerationConfig(**common, **recipe)
    pipe = pipeline("text-generation", model=tiny_llada, tokenizer=make_tokenizer(), device="cpu")
    answers = {pipe("2 3 4", return_full_text=False)[0]["generated_text"] for _ in range(3)}
    expected = tiny_llada.generate(torch.tensor([make_tokenizer()("2 3 4")["input_ids"]]))
    assert answers == {make_tokenizer().decode(expected[0, 3:], skip_special_tokens=True)}
    assert len(pipe(["2 3", "4"], batch_size=2, max_new_tokens=7, do_sample=True, num_return_sequences=2)[0]) == 2


def test_tokens_that_are_kept_out(tiny_llada):
    common = {"max_new_tokens": 16, "block_length": 8, "entropy_threshold": 1.0, "stop_at_eos": False}
    plain = tiny_llada.generate(PROMPT, **common)[0, 3:]
    banned = plain[:2].unique().tolist()
    for out in (
        tiny_llada.generate(PROMPT, suppress_tokens=banned, **common),
        tiny_llada.generate(PROMPT, bad_words_ids=[[token] for token in banned], **common),
    ):
        assert not torch.isin(out[0, 3:], torch.tensor(banned)).any()
    eos = plain[1].item()
    early = tiny_llada.generate(PROMPT, eos_token_id=eos, **(common | {"stop_at_eos": True}))
    late = tiny_llada.generate(PROMPT, eos_token_id=eos, min_new_tokens=9, **(common | {"stop_at_eos": True}))
    assert eos in early[0, 3:5] and eos not in late[0, 3:12]
    assert not torch.equal(tiny_llada.generate(PROMPT, repetition_penalty=5.0, **common)[0, 3:], plain)


def test_several_answers_to_a_prompt(tiny_llada):
    common = {"max_new_tokens": 8, "block_length": 4}
    torch.manual_seed(0)
    out = tiny_llada.generate(torch.tensor([[2, 3], [4, 5]]), num_return_sequences=3, temperature=2.0, **common)
    assert out[:, 0].tolist() == [2, 2, 2, 4, 4, 4] and len(out[:3].unique(dim=0)) > 1


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_every_setting_says_what_it_is(name):
    setting = SETTINGS[name]
    assert setting.group in GROUPS and setting.help.endswith((".", "?"))
    assert name in DiffusionGenerationConfig.__doc__
    assert setting.read(setting.default) == setting.default
    assert json.loads(json.dumps(setting.default)) == setting.default


def test_the_docstring_has_the_settings_in_every_python():
    """Python 3.13 keeps docstrings without their indentation."""
    text = DiffusionGenerationConfig.__doc__
    assert text == inspect.cleandoc(text) and "\n\nArgs:\n    max_new_tokens (`int`" in text


def test_an_error_says_which_setting_it_is_about():
    with pytest.raises(SettingError) as caught:
        DiffusionGenerationConfig(top_p=1.5)
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert (error.setting, error.value, error.rule) == ("top_p", 1.5, "must be a probability above 0 and up to 1")
        assert str(error) == "`top_p` must be a probability above 0 and up to 1, got 1.5."
    error = SettingError("suffix_length", 3, rule="cannot be compiled", remedy="Leave out `compile_config`.")
    assert str(error) == "`suffix_length=3` cannot be compiled. Leave out `compile_config`."


def test_a_setting_is_on_where_it_does_something(tiny_llada):
    config = resolve(tiny_llada, entropy_threshold=0.0, max_active_blocks=1, editing_threshold=1, stop_strings="")
    off = ("max_active_blocks", "editing_threshold", "stop_strings", "temperature", "no_setting")
    assert config.is_on("entropy_threshold") and not any(map(config.is_on, off))
    assert resolve(tiny_llada, entropy_threshold=0.5, editing_threshold=0.9).is_on("editing_threshold")
    one_each = DiffusionGenerationConfig(suppress_tokens=0, stop_strings="a")
    assert one_each.settings() == {"suppress_tokens": [0], "stop_strings": ["a"]}
