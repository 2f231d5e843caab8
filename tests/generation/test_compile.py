# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Compiled decoding: the tokens of the plain one, few shapes, and no setting inside compiled code."""

import pytest
import torch
from transformers import CompileConfig

from ..helpers import left_padded, make_dream, make_llada


NEW = {"max_new_tokens": 16, "block_length": 4, "stop_at_eos": False, "return_dict_in_generate": True}


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


@pytest.mark.parametrize("make", [make_llada, make_dream])
@pytest.mark.parametrize("cache", [None, "prefix", "dual"])
def test_same_tokens_as_without(make, cache):
    model = make()
    compile_config = CompileConfig(backend=CountingBackend(), dynamic=False)
    ids, attention_mask = left_padded([[2, 3], [4, 5, 6], [7]])
    for threshold in (0.0, 1.0, 3.0):
        kwargs = {"entropy_threshold": threshold, "cache_implementation": cache, **NEW}
        plain = model.generate(ids, attention_mask=attention_mask, **kwargs)
        compiled = model.generate(ids, attention_mask=attention_mask, compile_config=compile_config, **kwargs)
        assert same(compiled, plain)


def test_new_settings_and_similar_prompts_compile_nothing_anew():
    model, backend = make_llada(), CountingBackend()
    compile_config = CompileConfig(backend=backend, dynamic=False, fullgraph=True)

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


def test_bad_settings(tiny_llada):
    with pytest.raises(ValueError, match="`compile_config` must be a transformers.CompileConfig, got 'inductor'"):
        tiny_llada.generate(torch.tensor([[2, 3]]), compile_config="inductor", **NEW)
    tiny_llada._supports_window_cache = False
    with pytest.raises(ValueError, match="`compile_config=.* needs a model of this package"):
        tiny_llada.generate(torch.tensor([[2, 3]]), compile_config=CompileConfig(), **NEW)
