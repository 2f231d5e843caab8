# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Decoding on a device gives what it gives on the CPU, with every setting, and nothing of it is left on the CPU."""

import pytest
import torch
from transformers import LogitsProcessorList, RepetitionPenaltyLogitsProcessor, StoppingCriteria, StoppingCriteriaList

from hf_dparallel import enable_diffusion_generation
from hf_dparallel.data.trajectories import generate_trajectories
from hf_dparallel.evaluation.lm_eval.likelihood import estimate_log_likelihood
from hf_dparallel.generation.configuration import DiffusionGenerationConfig
from hf_dparallel.serving.engine import Engine

from ..helpers import (
    MASK,
    Recorder,
    left_padded,
    make_modernbert,
    make_prompts,
    make_tokenizer,
    make_word_tokenizer,
)
from ..serving.helpers import ask, make_prompt
from ..simulated_device import SimulatedDevices, SimulatedTensor
from .helpers import SimulatedEngine, small_dream, small_llada, small_sdar


PROMPTS = [[2, 3], [4, 5, 6, 7, 8], [9], [10, 11, 12]]
INFILLING = [[2, MASK, 3, MASK, MASK, 4], [5, MASK, MASK, 6, 7, 8, 9, MASK, MASK]]
SETTINGS = {"max_new_tokens": 8, "block_length": 4, "entropy_threshold": 1.0, "stop_at_eos": False}


class EndsAtSomeTokens(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] % 7 == 3


def each_cache(name, **settings):
    return {f"{name}, cache {cache}": settings | {"cache_implementation": cache} for cache in (None, "prefix", "dual")}


CASES = {
    **each_cache("entropy"),
    "several blocks": {"max_active_blocks": 3, "block_add_threshold": 0.5, "cache_implementation": "dual"},
    "confidence": {"entropy_threshold": None, "confidence_threshold": 0.3},
    "bound": {"entropy_threshold": None, "entropy_bound": 1.5},
    "factor": {"entropy_threshold": None, "confidence_factor": 1.2},
    "steps": {"entropy_threshold": None, "denoising_steps": 4},
    "refreshed": {"cache_implementation": "dual", "cache_refresh_interval": 2},
    "end": {"stop_at_eos": True, "eos_token_id": [5, 20, 33, 40]},
    "end, dual": {"stop_at_eos": True, "eos_token_id": [5, 20, 33, 40], "cache_implementation": "dual"},
    "sampling": {"temperature": 1.0, "top_k": 20, "top_p": 0.9},
    "sampling, by row": {"temperature": 1.0, "generator": lambda at: [rng(at, seed) for seed in range(len(PROMPTS))]},
    "certainty": {"output_certainty": True},
    "processors": {"logits_processor": lambda at: LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.3)])},
    "criteria": {"stopping_criteria": lambda at: StoppingCriteriaList([EndsAtSomeTokens()])},
    "stop strings": {"stop_strings": ["w20", "w33"], "tokenizer": lambda at: make_word_tokenizer(), "pad_token_id": 0},
    "float16": {"dtype": torch.float16},
    "stream": {"prompts": PROMPTS[1:2], "streamer": lambda at: Recorder()},
    "infilling": {"prompts": INFILLING, "max_new_tokens": 0},
    "infilling, prefix": {"prompts": INFILLING, "max_new_tokens": 0, "cache_implementation": "prefix"},
    "infilling, certainty": {
        "prompts": INFILLING,
        "max_new_tokens": 0,
        "output_certainty": True,
    },
}


def rng(device, seed):
    return torch.Generator(device).manual_seed(seed)


@pytest.fixture
def devices():
    with SimulatedDevices() as devices:
        yield devices


def on_host(value):
    return value.elem if isinstance(value, SimulatedTensor) else value


def decode(make_model, at, prompts=PROMPTS, dtype=None, **settings):
    """Returns the output and what was streamed. Settings that differ from device to device are functions of it."""
    model = make_model()
    model = model if dtype is None else model.to(dtype)
    if at == "cuda":
        SimulatedDevices.move(model)
    settings = {name: value(at) if callable(value) else value for name, value in (SETTINGS | settings).items()}
    ids, mask = (tensor.to(at) for tensor in left_padded(prompts, pad=1))
    torch.manual_seed(0)
    out = model.generate(ids, attention_mask=mask, return_dict_in_generate=True, **settings)
    return out, vars(settings["streamer"]) if "streamer" in settings else None


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.device == torch.device("cuda:0"), name
        torch.testing.assert_close(on_host(tensor), theirs[name], equal_nan=True)


@pytest.mark.parametrize(
    ("make_model", "name"),
    # Dream shifts, by which the windows of its caches differ.
    [(small_llada, name) for name in CASES]
    + [(small_dream, name) for name in CASES if "cache dual" in name or "prefix" in name]
    # The default of block-causal models is a cache of their own.
    + [(small_sdar, name) for name in ("entropy, cache None", "certainty")],
)
def test_answers_are_those_of_the_cpu(make_model, name):
    expected, expected_stream = decode(make_model, "cpu", **CASES[name])
    with SimulatedDevices():
        out, stream = decode(make_model, "cuda", **CASES[name])
        assert_same(out, expected)
    assert stream == expected_stream


@pytest.mark.parametrize("shift_logits", [False, True])
def test_models_of_other_classes(shift_logits):
    def make_model():
        return enable_diffusion_generation(make_modernbert().double(), mask_token_id=MASK, shift_logits=shift_logits)

    settings = {"eos_token_id": 5, "pad_token_id": 1}
    expected, _ = decode(make_model, "cpu", **settings)
    with SimulatedDevices():
        assert_same(decode(make_model, "cuda", **settings)[0], expected)


def test_the_engine():
    def answers(engine):
        settings = [
            {"max_new_tokens": 8} | more for more in ({}, {"temperature": 0.8}, {"cache_implementation": "dual"})
        ]
        prompts = [make_prompt(engine.model, ids, 8, **settings[i % 3]) for i, ids in enumerate(PROMPTS)]
        listeners = ask(engine, prompts)
        engine.close()
        assert not any(listener.error for listener in listeners)
        return [listener.tokens for listener in listeners]

    assert answers(SimulatedEngine(small_llada(), 2, 100)) == answers(Engine(small_llada(), 2, 100))


def test_trajectories():
    def rows(model):
        recipe = DiffusionGenerationConfig(max_new_tokens=8, block_length=4, entropy_threshold=1.0, temperature=0.5)
        return generate_trajectories(model, make_tokenizer(), make_prompts(3), recipe, batch_size=2, seed=1)[:]

    expected = rows(small_llada())
    with SimulatedDevices() as devices:
        assert rows(devices.move(small_llada())) == expected


def test_measures_of_an_answer(devices):
    model = devices.move(small_llada())
    estimate = estimate_log_likelihood(model, [2, 3, 4], [5, 6, 7, 8], MASK, 16, 4, rng("cpu", 0))
    assert estimate == pytest.approx(
        estimate_log_likelihood(small_llada(), [2, 3, 4], [5, 6, 7, 8], MASK, 16, 4, rng("cpu", 0))
    )


def test_prompts_on_the_cpu_are_moved(devices):
    model = devices.move(small_llada())
    ids, mask = left_padded(PROMPTS, pad=1)
    out = model.generate(ids, attention_mask=mask, **SETTINGS)
    assert torch.equal(on_host(out), small_llada().generate(ids, attention_mask=mask, **SETTINGS))
