# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Compiled decoding: the tokens of the plain one, few shapes, and no setting inside compiled code."""

import pytest
import torch
from transformers import CompileConfig

from ..helpers import left_padded, make_dream, make_fast_dllm, make_llada, make_nemotron


NEW = {"max_new_tokens": 16, "block_length": 4, "stop_at_eos": False, "return_dict_in_generate": True}


# A layer less is a third less to trace, and one layer has all shapes.
def one_layer(make):
    return make(**{"n_layers" if make is make_llada else "num_hidden_layers": 1})


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


@pytest.mark.parametrize(
    ("make", "cache", "origin"),
    [
        pytest.param(make_dream, "prefix", None, marks=pytest.mark.slow),
        (make_fast_dllm, "block", "answer"),
        pytest.param(make_nemotron, "block", None, marks=pytest.mark.slow),
    ],
)
def test_same_tokens_as_without(make, cache, origin):
    model = one_layer(make)
    compile_config = CompileConfig(backend=CountingBackend())
    ids, attention_mask = left_padded([[2, 3], [4, 5, 6], [7]])
    for threshold in (0.5, 2.0):
        kwargs = {"entropy_threshold": threshold, "cache_implementation": cache, "block_origin": origin, **NEW}
        plain = model.generate(ids, attention_mask=attention_mask, **kwargs)
        compiled = model.generate(ids, attention_mask=attention_mask, compile_config=compile_config, **kwargs)
        assert same(compiled, plain)


def test_new_settings_and_similar_prompts_compile_nothing_anew():
    model, backend = one_layer(make_llada), CountingBackend()
    compile_config = CompileConfig(backend=backend, fullgraph=True)

    def decode(prompt, **settings):
        kwargs = NEW | settings
        compiled = model.generate(torch.tensor([prompt]), compile_config=compile_config, **kwargs)
        assert same(compiled, model.generate(torch.tensor([prompt]), **kwargs))

    decode([2, 3], entropy_threshold=0.5)
    first = backend.num_graphs
    assert first > 0
    decode([2, 3], entropy_threshold=2.0)
    decode([2, 3, 4, 5], confidence_threshold=0.1)
    decode([6], denoising_steps=4)
    assert backend.num_graphs == first


def test_as_many_blocks_as_in_the_paper_stay_below_the_recompile_limit():
    """Each of the eight blocks has another length after it."""
    model, backend = one_layer(make_llada), CountingBackend()
    kwargs = NEW | {"max_new_tokens": 32, "denoising_steps": 8, "cache_implementation": "prefix"}
    # With `fullgraph` torch raises an error where the limit is hit.
    compile_config = CompileConfig(backend=backend, fullgraph=True)
    plain = model.generate(torch.tensor([[2, 3, 4]]), **kwargs)
    assert same(model.generate(torch.tensor([[2, 3, 4]]), compile_config=compile_config, **kwargs), plain)
    assert backend.num_graphs <= 5


@pytest.mark.parametrize("cache", [None, pytest.param("dual", marks=pytest.mark.slow)])
def test_slots_compile_few_shapes(cache):
    model, backend = one_layer(make_llada), CountingBackend()
    compile_config = CompileConfig(backend=backend, fullgraph=True)
    prompts = [[2 + (7 * row + k) % 60 for k in range(1 + (13 * row) % 40)] for row in range(5)]
    kwargs = NEW | {"entropy_threshold": 1.0, "cache_implementation": cache}
    del kwargs["return_dict_in_generate"]
    plain = [row.tokens.tolist() for row in model.generate_many(prompts, batch_size=2, **kwargs)]
    graphs = []
    for _ in range(2):
        rows = model.generate_many(prompts, batch_size=2, compile_config=compile_config, **kwargs)
        assert [row.tokens.tolist() for row in rows] == plain
        graphs.append(backend.num_graphs)
    # The second time nothing is recorded anew.
    assert graphs[0] == graphs[1] <= torch._dynamo.config.recompile_limit


def test_disable_compile(tiny_llada):
    backend = CountingBackend()
    tiny_llada.generate(
        torch.tensor([[2, 3]]), compile_config=CompileConfig(backend=backend), disable_compile=True, **NEW
    )
    assert backend.num_graphs == 0


@pytest.mark.slow
@pytest.mark.parametrize("cache", [None, "dual"])
def test_inductor(tiny_llada, cache):
    kwargs = {"entropy_threshold": 1.0, "cache_implementation": cache, **NEW}
    plain = tiny_llada.generate(torch.tensor([[2, 3]]), **kwargs)
    compiled = tiny_llada.generate(torch.tensor([[2, 3]]), compile_config=CompileConfig(mode="default"), **kwargs)
    assert same(compiled, plain)
