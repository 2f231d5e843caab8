# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Compiled decoding: the tokens of the plain one, few shapes, and no setting inside compiled code."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import CompileConfig

from hf_dparallel.generation.compiled import CompiledPass

from ..helpers import assert_same_row, make_a2d, make_dream, make_fast_dllm, make_llada, make_nemotron, make_sdar


NEW = {"max_new_tokens": 16, "block_length": 4, "stop_at_eos": False, "return_dict_in_generate": True}


EXACT = {"block_length": 4, "causal_past": True, "shift_logits": True}


# A layer less is a third less to trace, and one layer has all shapes.
def make_one_layer(make):
    return make(num_hidden_layers=1, **(EXACT if make is make_a2d else {})).double()


class CountingBackend:
    """Runs the traced graphs as they are and counts them."""

    def __init__(self):
        self.num_graphs = 0

    def __call__(self, graph, example_inputs, **kwargs):
        self.num_graphs += 1

        def run(*args):
            with record_function("graph"):
                return graph.forward(*args)

        return run

    def __deepcopy__(self, memo):
        return self


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def same(compiled, plain):
    return all(torch.equal(compiled[name], plain[name]) for name in ("sequences", "nfe", "commit_step"))


CACHES = [
    (make_llada, {"entropy_threshold": 1.0}),
    (make_llada, {"cache_implementation": "prefix", "denoising_steps": 8}),
    (make_llada, {"cache_implementation": "dual", "entropy_threshold": 1.0}),
    pytest.param(
        make_dream,
        {"cache_implementation": "dual", "entropy_threshold": 1.0, "cache_refresh_interval": 2},
        marks=pytest.mark.slow,
    ),
    (make_sdar, {"confidence_threshold": 0.3}),
    (make_fast_dllm, {"confidence_threshold": 0.3}),
    pytest.param(make_nemotron, {"confidence_threshold": 0.3}, marks=pytest.mark.slow),
    (make_a2d, {"exact": True, "confidence_threshold": 0.01}),
    (make_a2d, {"exact": True, "cache_implementation": "none", "confidence_threshold": 0.01}),
    (make_a2d, {"exact": False, "confidence_threshold": 0.05}),
]


@pytest.mark.parametrize(("make", "settings"), CACHES)
def test_every_cache_has_few_graphs_and_the_same_tokens(make, settings):
    model = make_one_layer(make)
    backend, num_graphs = CountingBackend(), []
    config = CompileConfig(backend=backend, fullgraph=True, dynamic=False)
    kwargs = NEW | settings | ({} if model.attention == "full" else {"block_length": None})
    for prompt in ([2, 3, 4, 5, 6], [2, 3, 4], list(range(2, 33))):
        ids = torch.tensor([prompt])
        assert same(model.generate(ids, compile_config=config, **kwargs), model.generate(ids, **kwargs)), prompt
        num_graphs.append(backend.num_graphs)
    assert 2 <= num_graphs[0] <= num_graphs[-1] <= 5, num_graphs
    assert len(set(num_graphs)) == 1


def test_further_settings_compile_the_decision_alone():
    model, backend = make_one_layer(make_llada), CountingBackend()
    compile_config = CompileConfig(backend=backend, fullgraph=True)
    ids, graphs = torch.tensor([[2, 3, 4]]), []
    for settings in ({"entropy_threshold": 0.5}, {"entropy_threshold": 2.0}, {"denoising_steps": 8}):
        kwargs = NEW | settings
        assert same(model.generate(ids, compile_config=compile_config, **kwargs), model.generate(ids, **kwargs))
        graphs.append(backend.num_graphs)
    assert graphs == [2, 3, 4]


@pytest.mark.parametrize(
    "settings",
    [
        {"entropy_threshold": 1.0},
        {"entropy_threshold": 1.0, "temperature": 1.0},
        {"entropy_threshold": 1.0, "logits_processor": [lambda ids, scores: scores + ids[:, -1:] % 3]},
        {"entropy_threshold": 1.0, "output_certainty": True},
    ],
)
@pytest.mark.parametrize(
    ("make", "cache"), [(make_llada, "dual"), pytest.param(make_sdar, "block", marks=pytest.mark.slow)]
)
def test_rows_that_come_and_go_are_the_same(make, cache, settings):
    model = make_one_layer(make)
    prompts = [[2 + (7 * row + k) % 60 for k in range(length)] for row, length in enumerate((5, 9, 3, 7, 30))]
    kwargs = NEW | {"stop_at_eos": True, "eos_token_id": [1, 7, 9, 11, 20, 30], "cache_implementation": cache}
    kwargs |= settings | {"batch_size": 3, "generator_for": lambda number: torch.Generator().manual_seed(number)}
    compile_config = CompileConfig(backend=CountingBackend(), fullgraph=True)
    rows = list(model.generate_many(prompts, compile_config=compile_config, **kwargs))
    for row, other in zip(rows, model.generate_many(prompts, **kwargs), strict=True):
        assert_same_row(row, other, row.index)
        if row.entropies is not None:
            torch.testing.assert_close(row.entropies, other.entropies, equal_nan=True)


VIEWS = {"alias", "as_strided", "detach", "empty", "expand", "select", "slice", "split", "squeeze", "t", "to"}
VIEWS |= {"transpose", "unsqueeze", "view"}


def is_operator(event):
    return event.name.startswith("aten::") and event.name.removeprefix("aten::") not in VIEWS


@pytest.mark.parametrize(("make", "settings"), [CACHES[2], CACHES[7]])
def test_a_pass_runs_few_operators_beside_its_graphs_and_keeps_its_cache_in_place(monkeypatch, make, settings):
    """Counted on the host, views left out; the copy of the status to the host is one more."""
    model, run_pass, addresses = make_one_layer(make), CompiledPass.run_pass, []
    compile_config = CompileConfig(backend=CountingBackend(), fullgraph=True)
    kwargs = NEW | settings | ({} if model.attention == "full" else {"block_length": None})
    kwargs |= {"compile_config": compile_config}
    model.generate(torch.tensor([[2, 3, 4, 5, 6]]), **kwargs)

    def recorded(self):
        with record_function("pass" if addresses else "first pass"):
            result = run_pass(self)
        addresses.append(self.decoder.runner.cache.layers[0].keys.data_ptr())
        return result

    monkeypatch.setattr(CompiledPass, "run_pass", recorded)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        out = model.generate(torch.tensor([[2, 3, 4, 5, 6]]), **kwargs)
    num_operators = 0
    for event in filter(is_operator, profiled.events()):
        around, names = event.cpu_parent, []
        while around is not None:
            names.append("operator" if is_operator(around) else around.name)
            around = around.cpu_parent
        num_operators += "pass" in names and "operator" not in names and "graph" not in names
    assert 0 < num_operators <= 11 * (out.nfe.item() - 1)
    assert len(set(addresses)) == 1


def test_draws_of_the_global_state_are_the_same():
    model, outputs = make_one_layer(make_sdar), []
    ids = torch.tensor([[2, 3, 4, 5, 6]] * 3)
    for compile_config in (None, CompileConfig(backend=CountingBackend(), fullgraph=True)):
        torch.manual_seed(0)
        kwargs = NEW | {"temperature": 1.0, "confidence_threshold": 0.3}
        outputs.append(model.generate(ids, compile_config=compile_config, **kwargs))
    assert same(*outputs)


def test_disable_compile(tiny_llada):
    backend = CountingBackend()
    tiny_llada.generate(
        torch.tensor([[2, 3]]), compile_config=CompileConfig(backend=backend), disable_compile=True, **NEW
    )
    assert backend.num_graphs == 0


@pytest.mark.slow
def test_inductor(tiny_llada):
    kwargs = {"entropy_threshold": 1.0, **NEW}
    plain = tiny_llada.generate(torch.tensor([[2, 3]]), **kwargs)
    compiled = tiny_llada.generate(torch.tensor([[2, 3]]), compile_config=CompileConfig(mode="default"), **kwargs)
    assert same(compiled, plain)
