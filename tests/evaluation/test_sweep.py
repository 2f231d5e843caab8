# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
import pytest

from hf_dparallel.evaluation.sweep import parse_sweep


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("entropy_threshold=0.1:1.0:0.1", "entropy_threshold", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]),
        ("entropy_threshold=0.1:0.35:0.1", "entropy_threshold", [0.1, 0.2, 0.3]),
        ("confidence_threshold=0.9", "confidence_threshold", [0.9]),
        ("denoising_steps=64,32,16", "denoising_steps", [64, 32, 16]),
        ("block_length=8:24:8", "block_length", [8, 16, 24]),
    ],
)
def test_values(text, name, values):
    assert parse_sweep(text) == (name, values)
    assert [type(value) for value in parse_sweep(text)[1]] == [type(value) for value in values]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stop_at_eos=1", "must start with one of max_new_tokens, block_length, .*, and an equals"),
        ("entropy_treshold=1", "and an equals sign. Did you mean `entropy_threshold`"),
        ("entropy_threshold", "must be of the form entropy_threshold=START:STOP:STEP or entropy_threshold=VALUE,"),
        ("entropy_threshold=", "must be of the form"),
        ("entropy_threshold=a,b", "must be of the form"),
        ("entropy_threshold=0.1:1", "must be of the form"),
        ("entropy_threshold=1:0.1:0.1", "must be of the form"),
        ("entropy_threshold=0.1:1:0", "a positive step"),
        ("entropy_threshold=0:1:0.0001", "at most 1000 values"),
        ("entropy_threshold=nan:1:0.1", "must be of the form"),
        ("entropy_threshold=inf", "must be of the form"),
        ("denoising_steps=inf", "must be of the form"),
        ("denoising_steps=1.5", "must have whole numbers as values of `denoising_steps`"),
    ],
)
def test_bad_sweeps(text, message):
    with pytest.raises(ValueError, match=f"`sweep={text}` {message}" if message.startswith("must") else message):
        parse_sweep(text)
