# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""How often a pass of the loop waits for the device, copies to it, and launches kernels."""

import dataclasses

import pytest
import torch
from transformers import CompileConfig

from hf_dparallel.generation.decoder import Decoder

from ..helpers import Recorder, left_padded, make_llada, make_sdar
from ..serving.helpers import ask, make_prompt
from ..simulated_device import SimulatedDevices
from .helpers import SimulatedEngine, small_dream, small_llada, small_sdar


@dataclasses.dataclass
class Counts:
    """What a pass that no row enters or leaves costs at most.

    Kernels of the loop without those of the model, the median over the passes; waits of the host, and how many of them
    are between the forward pass and the commit or between two forward passes; copies from the host.
    """

    launches: int
    waits: int = 1
    waits_for_model: int = 1
    copies: int = 0


# What is reached. Numbers here only ever fall.
LLADA = {
    "plain": Counts(48),
    "several blocks": Counts(75),
    "sampling": Counts(58),
    "entropy bound": Counts(56),
    "certainty": Counts(90),
    "suffix": Counts(65),
    "verified": Counts(110),
    "soft": Counts(99),
    "prefix": Counts(67, waits=2, copies=1),
    "dual": Counts(67, waits=2, copies=1),
    "verified, dual": Counts(164, waits=2, copies=1),
}
DREAM = {"dual": Counts(69, waits=2, copies=1), "verified": Counts(116)}
SDAR = {
    "block": Counts(62),
    "rows out of step": Counts(62),
    "no block cache": Counts(50),
    "editing": Counts(90),
}
# Copies from the host for each layer, when rows enter and leave. The aim: none.
COPIES_BY_LAYER = {"plain": 0, "prefix": 0, "dual": 0, "block": 0}
# Kernels for each layer, for keys and values: one copy where a row leaves, one where one enters. Two layers, less one.
LAUNCHES_BY_LAYER = {"plain": 0, "prefix": 4, "dual": 4, "block": 6}
# Graphs that compiled code records when the same call comes a second time. The aim: none.
RECORDED_AGAIN = {"plain": 0, "prefix": 0, "dual": 0, "block": 0}

# Waits of an engine outside of its passes, for each of them: where rows enter and leave.
WAITS_BETWEEN_PASSES = 0.45

SETTINGS = {
    "plain": {},
    "several blocks": {"max_active_blocks": 3, "block_add_threshold": 0.5},
    "sampling": {"temperature": 1.0},
    "entropy bound": {"entropy_threshold": None, "entropy_bound": 0.5},
    "certainty": {"output_certainty": True, "return_dict_in_generate": True},
    "suffix": {"suffix_length": 4},
    "verified": {"revocation_threshold": 0.6},
    "verified, dual": {"revocation_threshold": 0.6, "cache_implementation": "dual"},
    "soft": {"entropy_threshold": None, "soft_threshold": 0.3},
    "editing": {"editing_threshold": 0.5, "max_post_steps": 1},
    "prefix": {"cache_implementation": "prefix"},
    "dual": {"cache_implementation": "dual"},
    # The default of block-causal models.
    "block": {},
    "rows out of step": {"prompts": [[2, 3], [4, 5, 6, 7, 8, 9, 10], [11, 12, 13], [14] * 12]},
    "no block cache": {"use_cache": False},
}
PROMPTS = [[2, 3], [4, 5, 6, 7, 8], [9]]
COMMON = {"max_new_tokens": 12, "block_length": 4, "entropy_threshold": 0.7, "stop_at_eos": False}


@pytest.fixture
def steady_passes(monkeypatch):
    """Labels the events of each pass with its number, and lists the passes that no row entered or left."""
    # The first pass after rows have left makes the cache smaller.
    step, steady, num_passes, has_changed = Decoder.step, [], 0, True

    def labelled_step(decoder):
        nonlocal num_passes, has_changed
        num_passes += 1
        devices = SimulatedDevices.current
        before, devices.label = devices.label, num_passes
        finished = step(decoder)
        devices.label = before
        if not finished and not has_changed:
            steady.append(num_passes)
        has_changed = bool(finished)
        return finished

    monkeypatch.setattr(Decoder, "step", labelled_step)
    return steady


def decode(model, prompts=PROMPTS, **settings):
    ids, mask = (tensor.to("cuda") for tensor in left_padded(prompts, pad=1))
    torch.manual_seed(0)
    settings = {name: value for name, value in (COMMON | settings).items() if value is not None}
    return model.generate(ids, attention_mask=mask, **settings)


def counts_of(devices, label) -> Counts:
    waits = [event for event in devices.events if event.label == label and event.kind == "wait"]
    return Counts(
        waits=len(waits),
        waits_for_model=sum(event.num_model_launches > 0 for event in waits),
        copies=devices.count("from_host", label=label),
        launches=devices.count("launch", label=label, in_model=False),
    )


@pytest.mark.parametrize(
    ("make_model", "reached", "name"),
    [
        (make_model, reached, name)
        for make_model, reached in ((small_llada, LLADA), (small_dream, DREAM), (small_sdar, SDAR))
        for name in reached
    ],
)
def test_a_pass_costs_no_more_than_reached(make_model, reached, name, steady_passes):
    with SimulatedDevices() as devices:
        model = devices.move(make_model())
        devices.events.clear()
        decode(model, **SETTINGS[name])
    counts = [counts_of(devices, label) for label in steady_passes]
    assert len(counts) >= 5
    most = Counts(*(max(getattr(c, field.name) for c in counts) for field in dataclasses.fields(Counts)))
    most.launches = sorted(c.launches for c in counts)[len(counts) // 2]
    for field in dataclasses.fields(Counts):
        measured, limit = getattr(most, field.name), getattr(reached[name], field.name)
        assert measured <= limit, f"{most} in a pass, more {field.name} than reached:\n{devices.table('wait')}"


def test_a_stream_of_tokens_and_drafts_waits_once_more(steady_passes):
    with SimulatedDevices() as devices:
        model = devices.move(small_llada())
        devices.events.clear()
        decode(model, PROMPTS[1:2], streamer=Recorder())
    assert {counts_of(devices, label).waits for label in steady_passes} == {2}


def test_an_engine_hardly_waits_between_passes(steady_passes):
    engine = SimulatedEngine(small_llada(), 4, 100)
    settings = [COMMON | {"max_new_tokens": 16} | SETTINGS[name] for name in ("plain", "sampling", "dual")]
    ask(engine, [make_prompt(engine.model, [2 + n] * (1 + n), **settings[n % 3]) for n in range(6)])
    engine.close()
    assert len(steady_passes) > 20
    waits = engine.devices.count("wait", label=None)
    assert waits <= WAITS_BETWEEN_PASSES * engine.num_passes, engine.devices.table("wait", label=None)


@pytest.mark.parametrize("name", COPIES_BY_LAYER)
def test_copies_for_rows_that_enter_and_leave(name):
    """The rule takes as many passes with any number of layers."""
    settings = COMMON | SETTINGS[name] | {"entropy_threshold": None, "denoising_steps": 8}
    copies, launches = [], []
    for num_layers in (1, 2):
        with SimulatedDevices() as devices:
            make_model = make_sdar if name == "block" else make_llada
            model = devices.move(make_model(num_hidden_layers=num_layers))
            devices.events.clear()
            list(model.generate_many(PROMPTS, batch_size=2, **settings))
        copies.append(devices.count("from_host"))
        launches.append(sum(event.kind == "launch" and event.where.endswith("resize") for event in devices.events))
    assert copies[1] - copies[0] <= COPIES_BY_LAYER[name]
    assert launches[1] - launches[0] <= LAUNCHES_BY_LAYER[name]


class Region:
    """Stands for the compiled model: runs it as a graph that is being recorded, and remembers what was recorded."""

    def __init__(self, model, devices):
        self.model, self.devices, self.recorded = model, devices, set()

    def __call__(self, **inputs):
        self.recorded.add(tuple((name, x.shape) for name, x in sorted(inputs.items()) if isinstance(x, torch.Tensor)))
        with self.devices.capturing():
            return self.model(**inputs)


@pytest.mark.parametrize("name", RECORDED_AGAIN)
def test_compiled_code_never_waits_and_equal_calls_record_nothing_anew(name):
    compiled = SETTINGS[name] | {"compile_config": CompileConfig()}
    with SimulatedDevices() as devices:
        model = devices.move(small_sdar() if name == "block" else small_llada())
        region = Region(model, devices)
        model.get_compiled_call = lambda config: region
        decode(model, **compiled)
        first = len(region.recorded)
        decode(model, **compiled)
    assert len(region.recorded) - first <= RECORDED_AGAIN[name]
