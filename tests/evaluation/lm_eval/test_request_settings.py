# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""How settings of the model, the run and the task are merged."""

import math

import pytest

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.evaluation.lm_eval.model import read_gen_kwargs

from ...helpers import make_llada, make_tokenizer


def read(gen_kwargs, recipe=None, **defaults):
    model = make_llada()
    model.generation_config = DiffusionGenerationConfig(**(recipe or {}))
    return read_gen_kwargs(gen_kwargs, defaults, model, make_tokenizer())


def test_gen_kwargs_win_over_arguments_and_those_over_the_recipe():
    resolved, _ = read(
        {"block_length": 4, "do_sample": False, "temperature": 0.0},
        recipe={"max_new_tokens": 64, "block_length": 16, "denoising_steps": 8},
        block_length=8,
        entropy_threshold=0.3,
    )
    assert (resolved.max_new_tokens, resolved.block_length, resolved.temperature) == (64, 4, 0.0)
    assert (resolved.commit_rule(), resolved.entropy_threshold) == ("entropy_threshold", 0.3)
    assert read({"confidence_threshold": 0.9}, entropy_threshold=0.3)[0].commit_rule() == "confidence_threshold"


@pytest.mark.parametrize(
    ("gen_kwargs", "canvas"),
    [
        ({}, 256),
        ({"max_gen_toks": 40}, 40),
        ({"max_gen_toks": 5, "block_length": 4}, 5),
        ({"max_tokens": 32}, 32),
        ({"max_completion_tokens": 33}, 33),
        ({"max_gen_toks": 1024, "max_new_tokens": 96}, 96),
        ({"max_gen_toks": 1024, "max_new_tokens": None}, 1024),
    ],
)
def test_the_canvas_is_the_longest_answer(gen_kwargs, canvas):
    resolved, _ = read(gen_kwargs)
    # Without a rule one token per pass, on whatever canvas.
    assert (resolved.max_new_tokens, resolved.denoising_steps) == (canvas, canvas)


def test_stop_strings_of_all_kinds_end_the_answer():
    assert read({"until": "Q:"})[1] == ["Q:"]
    assert read({"until": ["", "a", "b", "a"], "stop_strings": "c"})[1] == ["a", "b", "c"]
    assert read({})[1] == []


@pytest.mark.parametrize(
    ("gen_kwargs", "message"),
    [
        ({"entropy_treshold": 0.5}, "Unknown generation setting.*entropy_treshold"),
        ({"num_beams": 4}, "num_beams=4.*no meaning"),
        ({"max_gen_toks": 0}, "`max_gen_toks` must be a positive integer .* got 0"),
        ({"max_gen_toks": 13.5}, "`max_gen_toks` must be a positive integer .* got 13.5"),
        ({"max_gen_toks": math.nan}, "`max_gen_toks` must be a positive integer .* got nan"),
        ({"max_tokens": "abc"}, "`max_tokens` must be a positive integer .* got 'abc'"),
        ({"until": 5}, "Expected .*until.* but got 5"),
        ({"max_new_tokens": -1}, "`max_new_tokens` must be 0 or a positive integer"),
        ({"entropy_threshold": 0.5, "denoising_steps": 8}, "are two commit rules"),
    ],
)
def test_what_cannot_be_done_is_said(gen_kwargs, message):
    with pytest.raises(ValueError, match=message):
        read(gen_kwargs)
