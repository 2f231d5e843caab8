# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""How settings of the model, the run and the task are merged."""

import pytest

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.harness.settings import read_gen_kwargs

from ..helpers import make_llada, make_tokenizer


def read(gen_kwargs, recipe=None, **defaults):
    model = make_llada()
    model.generation_config = DiffusionGenerationConfig(**(recipe or {}))
    return read_gen_kwargs(gen_kwargs, defaults, model, make_tokenizer())


def test_gen_kwargs_win_over_arguments_and_those_over_the_recipe():
    settings = read(
        {"block_length": 4, "do_sample": False, "temperature": 0.0},
        recipe={"max_new_tokens": 64, "block_length": 16, "denoising_steps": 8},
        block_length=8,
        entropy_threshold=0.3,
    )
    recipe = settings.recipe
    assert (recipe.max_new_tokens, recipe.block_length, recipe.temperature) == (64, 4, 0.0)
    assert (recipe.commit_rule(), recipe.entropy_threshold) == ("entropy_threshold", 0.3)
    assert settings.max_tokens == 64 and not settings.draws
    assert read({"confidence_threshold": 0.9}, entropy_threshold=0.3).recipe.commit_rule() == "confidence_threshold"


@pytest.mark.parametrize(
    ("gen_kwargs", "canvas", "max_tokens"),
    [
        ({}, 256, 256),
        ({"max_gen_toks": 40}, 64, 40),
        ({"max_gen_toks": 64}, 64, 64),
        ({"max_gen_toks": 5, "block_length": 4}, 8, 5),
        ({"max_tokens": 32}, 32, 32),
        ({"max_completion_tokens": 33}, 64, 33),
        ({"max_gen_toks": 1024, "max_new_tokens": 96}, 96, 96),
    ],
)
def test_the_canvas_has_the_whole_blocks_that_the_longest_answer_takes(gen_kwargs, canvas, max_tokens):
    settings = read(gen_kwargs)
    assert (settings.recipe.max_new_tokens, settings.max_tokens) == (canvas, max_tokens)
    # Without a rule one token per pass, on whatever canvas.
    assert settings.recipe.denoising_steps == canvas


def test_stop_strings_of_all_kinds_end_the_answer():
    assert read({"until": "Q:"}).until == ("Q:",)
    assert read({"until": ["", "a", "b", "a"], "stop_strings": "c"}).until == ("a", "b", "c")
    assert read({}).until == ()


@pytest.mark.parametrize(
    ("gen_kwargs", "message"),
    [
        ({"entropy_treshold": 0.5}, "Unknown generation setting.*entropy_treshold"),
        ({"num_beams": 4}, "num_beams=4.*no meaning"),
        ({"max_gen_toks": 0}, "`max_gen_toks` must be a positive integer, got 0"),
        ({"max_tokens": "abc"}, "`max_tokens` must be a positive integer, got 'abc'"),
        ({"until": 5}, "`until` must be a string or a list of strings, got 5"),
        ({"until": ["a", 5]}, "`until` must be a string or a list of strings"),
        ({"max_new_tokens": -1}, "`max_new_tokens` must be a positive integer"),
        ({"entropy_threshold": 0.5, "denoising_steps": 8}, "At most one commit rule"),
    ],
)
def test_what_cannot_be_done_is_said(gen_kwargs, message):
    with pytest.raises(ValueError, match=message):
        read(gen_kwargs)


def test_the_fingerprint_is_of_what_the_answer_depends_on():
    same = read({"max_new_tokens": 32, "until": ["a"]})
    assert same.fingerprint() == read({"until": "a"}, max_new_tokens=32).fingerprint()
    others = [{"max_new_tokens": 64}, {"until": ["b"]}, {"entropy_threshold": 0.1}, {"max_gen_toks": 31}]
    prints = {read({"max_new_tokens": 32, "until": ["a"]} | other).fingerprint() for other in others[:3]}
    prints.add(read({"max_gen_toks": 31, "until": ["a"]}).fingerprint())
    assert len(prints | {same.fingerprint()}) == 5
