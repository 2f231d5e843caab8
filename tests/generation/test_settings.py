# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""One table of settings, and one way in which the settings of caller, adapter and model become one."""

import inspect
import json
import pickle
import subprocess
import sys
import tempfile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig, pipeline

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.generation.configuration import resolve
from hf_dparallel_rules.settings import GROUPS, SETTINGS, SettingError

from ..helpers import make_llada, make_tokenizer, refuses


PROMPT = torch.tensor([[2, 3, 4]])
# Values of every setting that a recipe could have; of the rules, whose values contradict one another, one at most.
VALUES = {
    "max_new_tokens": st.sampled_from([16, 24, 33]),
    "block_length": st.sampled_from([4, 8, 32]),
    "block_origin": st.sampled_from(["sequence", "answer"]),
    "max_active_blocks": st.just(1),
    "suffix_length": st.integers(0, 40),
    "revocation_threshold": st.just(0.0),
    "editing_threshold": st.just(1.0),
    "max_post_steps": st.integers(0, 3),
    "block_add_threshold": st.sampled_from([0.25, 0.5]),
    "commit_order": st.sampled_from(["confidence", "left_to_right"]),
    "min_commits": st.sampled_from([1, 2]),
    "top_k": st.sampled_from([0, 5]),
    "top_p": st.sampled_from([0.9, 1.0]),
    "repetition_penalty": st.sampled_from([1.0, 1.3]),
    "min_new_tokens": st.sampled_from([0, 3]),
    "suppress_tokens": st.sampled_from([[], [5]]),
    "bad_words_ids": st.sampled_from([[], [[6]]]),
    "stop_at_eos": st.booleans(),
    "stop_strings": st.sampled_from([[], ["a"]]),
    "output_certainty": st.booleans(),
    "return_dict_in_generate": st.booleans(),
    "num_return_sequences": st.just(1),
    "mask_token_id": st.sampled_from([63, 62]),
    "eos_token_id": st.sampled_from([1, [1, 2]]),
    "pad_token_id": st.sampled_from([1, 0]),
    "bos_token_id": st.sampled_from([1, 0]),
    "disable_compile": st.booleans(),
}
RULES = {
    "denoising_steps": st.sampled_from([9, 16]),
    "confidence_threshold": st.sampled_from([0.5, 0.9]),
    "entropy_threshold": st.sampled_from([0.0, 0.5]),
    "entropy_bound": st.sampled_from([0.0, 0.5]),
    "entropy_budget": st.sampled_from([0.0, 0.5]),
    "confidence_factor": st.sampled_from([0.5, 1.0]),
    "soft_threshold": st.sampled_from([0.0, 0.5]),
}
SAMPLING = st.sampled_from(
    [{}, {}, {"temperature": 0.0}, {"temperature": 0.7}, {"do_sample": True}, {"do_sample": False}]
    + [{"do_sample": False, "temperature": 0.7}, {"do_sample": True, "temperature": 0.3}]
)
CACHE = st.sampled_from([{}, {}, {"use_cache": False}, {"use_cache": True}, {"cache_implementation": "dual"}])


@st.composite
def layers(draw):
    """What one source sets."""
    names = draw(st.sets(st.sampled_from(sorted(VALUES)), max_size=6))
    layer = {name: draw(VALUES[name]) for name in sorted(names)}
    rule = draw(st.none() | st.sampled_from(sorted(RULES)))
    return layer | ({rule: draw(RULES[rule])} if rule else {}) | draw(SAMPLING) | draw(CACHE)


def test_the_strategies_know_every_setting():
    by_hand = {"temperature", "cache_implementation", "cache_refresh_interval"}
    assert VALUES.keys() | RULES.keys() | by_hand | {"compile_config"} == SETTINGS.keys()


class WithAdapter:
    """A model as `resolve` sees it: its config and its recipes."""

    block_length, block_origin = 4, "answer"
    is_native, training = True, False

    def __init__(self, recipes, attention="full"):
        self.config = make_llada().config
        self.attention = attention
        self._recipes = recipes

    def recipes(self):
        return self._recipes


def first_explicit(name, sources):
    """The obvious oracle: the first source that says anything about a setting."""
    return next((source[name] for source in sources if source.get(name) is not None), None)


@settings(max_examples=80, deadline=None)
@given(layers(), st.none() | layers(), st.none() | layers(), layers(), st.sampled_from(["full", "block_causal"]))
def test_the_first_explicit_value_counts(keywords, config, adapter, base, attention):
    sources = [layer for layer in (keywords, config, adapter, base) if layer is not None]
    recipes = [DiffusionGenerationConfig(**layer) for layer in sources[1 + (config is not None) :]]
    model = WithAdapter(recipes, attention)
    defaults = {name: setting.default for name, setting in SETTINGS.items()}
    if attention != "full":
        defaults |= {"block_length": 4, "block_origin": "answer", "cache_implementation": "block"}
    given_config = DiffusionGenerationConfig(**config) if config is not None else None
    rule = next((name for source in sources for name in source if name in RULES), None)
    length, block = (first_explicit(name, sources) for name in ("max_new_tokens", "block_length"))
    length, block = length or 256, block or defaults["block_length"]
    if rule == "denoising_steps" and not -(-length // block) <= first_explicit(rule, sources) <= length:
        with refuses("denoising_steps"):
            resolve(model, given_config, **keywords)
        return
    resolved = resolve(model, given_config, **keywords)
    for name in VALUES.keys() - {"mask_token_id", "eos_token_id", "pad_token_id", "suffix_length"}:
        expected = first_explicit(name, sources)
        assert getattr(resolved, name) == (defaults[name] if expected is None else expected), name
    assert resolved.commit_rule() == (rule or "denoising_steps")
    assert getattr(resolved, resolved.commit_rule()) == (first_explicit(rule, sources) if rule else length)
    # The first source that says whether tokens are sampled; as a keyword, with the temperature of a recipe.
    words = [{"do_sample", "temperature"} & s.keys() for s in sources]
    says = next((s for s, word in zip(sources, words, strict=True) if word), {})
    temperature = says.get("temperature", 1.0) if says.get("do_sample", True) else 0.0
    if says is keywords and says.get("do_sample") and "temperature" not in says:
        below = [s.get("temperature", 1.0 if s.get("do_sample") else 0.0) * s.get("do_sample", True) for s in sources]
        temperature = next(filter(None, below[1:]), 1.0)
    assert resolved.temperature == (temperature if says else 0.0)
    # The first source that names a cache or turns it off; `use_cache=True` says nothing.
    cached = ["cache_implementation" in s or s.get("use_cache") is False for s in sources]
    first = cached.index(True) if any(cached) else len(sources) - 1
    named = sources[first].get("cache_implementation", "none") if any(cached) else defaults["cache_implementation"]
    assert resolved.cache_implementation == named
    # Below it, what approximates for speed belongs to another cache.
    assert resolved.suffix_length == first_explicit("suffix_length", sources[: first + 1])

    # A resolved configuration resolves to itself, even after it was saved, and on top of anything.
    with tempfile.TemporaryDirectory() as folder:
        resolved.save_pretrained(folder)
        loaded = DiffusionGenerationConfig.from_pretrained(folder)
    for again in (resolve(model, resolved), resolve(model, loaded), resolve(model, **resolved.settings())):
        assert again.settings() == resolved.settings()


@settings(max_examples=40, deadline=None)
@given(layers())
def test_saving_keeps_what_is_set_and_what_is_not(layer):
    with tempfile.TemporaryDirectory() as folder:
        DiffusionGenerationConfig(**layer).save_pretrained(folder)
        expected = DiffusionGenerationConfig(**layer).settings()
        assert DiffusionGenerationConfig.from_pretrained(folder).settings() == expected


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
def test_the_first_layer_that_sets_a_setting_wins(layers, expected):
    keywords, given, *recipes = layers
    given = given if isinstance(given, GenerationConfig) else DiffusionGenerationConfig(**given)
    recipes = [DiffusionGenerationConfig(**recipe) for recipe in recipes]
    before = [recipe.to_dict() for recipe in recipes]
    resolved = resolve(WithAdapter(recipes), given, **keywords)
    assert {name: getattr(resolved, name) for name in expected} == expected
    assert [recipe.to_dict() for recipe in recipes] == before


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


def test_the_table_needs_neither_torch_nor_transformers():
    """So that help texts can be quick."""
    code = (
        "import sys\n"
        "from hf_dparallel_rules.settings import SETTINGS\n"
        "assert {'entropy_threshold', 'editing_threshold'} <= set(SETTINGS)\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


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
    error = SettingError("suffix_length", 3, "cannot be compiled", "Leave out `compile_config`.")
    assert str(error) == "`suffix_length=3` cannot be compiled. Leave out `compile_config`."


def test_a_setting_is_on_where_it_does_something(tiny_llada):
    config = resolve(tiny_llada, entropy_threshold=0.0, max_active_blocks=1, editing_threshold=1, stop_strings="")
    off = ("max_active_blocks", "editing_threshold", "stop_strings", "temperature", "no_setting")
    assert config.is_on("entropy_threshold") and not any(map(config.is_on, off))
    assert resolve(tiny_llada, entropy_threshold=0.5, editing_threshold=0.9).is_on("editing_threshold")
    one_each = DiffusionGenerationConfig(suppress_tokens=0, stop_strings="a")
    assert one_each.settings() == {"suppress_tokens": [0], "stop_strings": ["a"]}
