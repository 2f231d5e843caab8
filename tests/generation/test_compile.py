# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Compiled decoding: the tokens of the plain one, few shapes, and no setting inside compiled code."""

import pytest
import torch
from transformers import CompileConfig

from ..helpers import make_dream, make_fast_dllm


NEW = {"max_new_tokens": 16, "block_length": 4, "stop_at_eos": False, "return_dict_in_generate": True}


# A layer less is a third less to trace, and one layer has all shapes.
def one_layer(make):
    return make(num_hidden_layers=1)


class CountingBackend:
    """Runs the traced graphs as they are and counts them."""

    def __init__(self):
        self.num_graphs = 0

    def __call__(self, graph, example_inputs, **kwargs):
        self.num_graphs += 1
        return graph.forward

    def __deepcopy__(self, memo):
        return self


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def same(compiled, plain):
    return all(torch.equal(compiled[name], plain[name]) for name in ("sequences", "nfe", "commit_step"))


@pytest.mark.parametrize("make", [make_fast_dllm, pytest.param(make_dream, marks=pytest.mark.slow)])
def test_same_tokens_as_without_and_new_settings_compile_nothing_anew(make):
    model, backend = one_layer(make), CountingBackend()
    compile_config = CompileConfig(backend=backend, fullgraph=True)
    ids, graphs = torch.tensor([[2, 3, 4]]), []
    for settings in ({"entropy_threshold": 0.5}, {"entropy_threshold": 2.0}, {"denoising_steps": 4}):
        kwargs = NEW | settings
        assert same(model.generate(ids, compile_config=compile_config, **kwargs), model.generate(ids, **kwargs))
        graphs.append(backend.num_graphs)
    assert 0 < graphs[0] == graphs[-1]


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
