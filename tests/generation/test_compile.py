# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Compiled decoding: the tokens of the plain one, few shapes, and no setting inside compiled code."""

import pytest
import torch
from transformers import CompileConfig

from hf_dparallel.generation.runner import _KEPT

from ..helpers import (
    Recorder,
    assert_same_row,
    make_a2d,
    make_dream,
    make_fast_dllm,
    make_llada,
    make_nemotron,
    make_sdar,
)


NEW = {"max_new_tokens": 16, "block_length": 4, "stop_at_eos": False, "return_dict_in_generate": True}


EXACT = {"block_length": 4, "causal_past": True, "shift_logits": True}


# A layer less is a third less to trace, and one layer has all shapes.
def make_one_layer(make):
    return make(num_hidden_layers=1, **(EXACT if make is make_a2d else {})).double()


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
def test_every_cache_has_few_graphs_and_the_same_tokens(graphs, make, settings):
    model = make_one_layer(make)
    kwargs = NEW | settings | ({} if model.attention == "full" else {"block_length": None})
    num_graphs, num_recordings = [], []
    for prompt in ([2, 3, 4, 5, 6], [2, 3, 4], list(range(2, 33))):
        ids = torch.tensor([prompt])
        assert same(model.generate(ids, compile_config=graphs.config, **kwargs), model.generate(ids, **kwargs)), prompt
        num_graphs.append(graphs.num_graphs)
        # The same memory in the next call, whose answer has nothing to do with what is in it.
        num_recordings.append(len(graphs.recordings))
        for layer in _KEPT[model].layers if model in _KEPT else []:
            assert layer.keys.isfinite().all() and layer.values.isfinite().all()
            layer.keys.fill_(torch.nan)
            layer.values.fill_(torch.nan)
    assert 2 <= num_graphs[0] <= 5 and len(set(num_graphs)) == 1, num_graphs
    assert num_recordings == num_graphs


def test_further_settings_compile_the_decision_alone(graphs):
    model = make_one_layer(make_llada)
    ids, num_graphs = torch.tensor([[2, 3, 4]]), []
    for settings in ({"entropy_threshold": 0.5}, {"entropy_threshold": 2.0}, {"denoising_steps": 8}):
        kwargs = NEW | settings
        assert same(model.generate(ids, compile_config=graphs.config, **kwargs), model.generate(ids, **kwargs))
        num_graphs.append(graphs.num_graphs)
    assert num_graphs == [2, 3, 4]


@pytest.mark.parametrize(
    "settings",
    [
        {"entropy_threshold": 1.0},
        pytest.param({"entropy_threshold": 1.0, "temperature": 1.0}, marks=pytest.mark.slow),
        pytest.param(
            {"entropy_threshold": 1.0, "logits_processor": [lambda ids, scores: scores + ids[:, -1:] % 3]},
            marks=pytest.mark.slow,
        ),
        pytest.param({"entropy_threshold": 1.0, "output_certainty": True}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    ("make", "cache"), [(make_llada, "dual"), pytest.param(make_sdar, "block", marks=pytest.mark.slow)]
)
def test_rows_that_come_and_go_are_the_same(graphs, make, cache, settings):
    model = make_one_layer(make)
    prompts = [[2 + (7 * row + k) % 60 for k in range(length)] for row, length in enumerate((5, 9, 3, 7, 30))]
    kwargs = NEW | {"stop_at_eos": True, "eos_token_id": [1, 7, 9, 11, 20, 30], "cache_implementation": cache}
    kwargs |= settings | {"batch_size": 3, "generator_for": lambda number: torch.Generator().manual_seed(number)}
    rows = list(model.generate_many(prompts, compile_config=graphs.config, **kwargs))
    for row, other in zip(rows, model.generate_many(prompts, **kwargs), strict=True):
        assert_same_row(row, other, row.index)
        if row.entropies is not None:
            torch.testing.assert_close(row.entropies, other.entropies, equal_nan=True)


def test_a_rule_with_a_memory_decides_as_without_compiled_code(graphs, klass):
    """Its tensors of the last pass are in no memory that compiled code uses again."""
    model = make_one_layer(make_llada)
    kwargs = NEW | {"max_new_tokens": 64, "block_length": 16, "kl_threshold": 1e-3, "kl_confidence": 0.02}
    compiled = model.generate(torch.tensor([[2, 3, 4]]), compile_config=graphs.config, **kwargs)
    plain = model.generate(torch.tensor([[2, 3, 4]]), **kwargs)
    assert same(compiled, plain) and plain.nfe.item() < 60


def test_a_streamer_gets_no_padding(graphs):
    model = make_one_layer(make_llada)
    streamers = []
    for compile_config in (None, graphs.config):
        streamer = Recorder()
        kwargs = NEW | {"entropy_threshold": 1.0, "compile_config": compile_config}
        model.generate(torch.tensor([[2, 3, 4]]), streamer=streamer, **kwargs)
        streamers.append((streamer.tokens, streamer.drafts, streamer.events))
    assert streamers[0] == streamers[1] and streamers[0][1]


def test_draws_of_the_global_state_are_the_same(graphs):
    model, outputs = make_one_layer(make_sdar), []
    ids = torch.tensor([[2, 3, 4, 5, 6]] * 3)
    for compile_config in (None, graphs.config):
        torch.manual_seed(0)
        kwargs = NEW | {"temperature": 1.0, "confidence_threshold": 0.3}
        outputs.append(model.generate(ids, compile_config=compile_config, **kwargs))
    assert same(*outputs)


def test_disable_compile(graphs, tiny_llada):
    tiny_llada.generate(torch.tensor([[2, 3]]), compile_config=graphs.config, disable_compile=True, **NEW)
    assert graphs.num_graphs == 0


@pytest.mark.slow
def test_inductor(tiny_llada):
    kwargs = {"entropy_threshold": 1.0, **NEW}
    plain = tiny_llada.generate(torch.tensor([[2, 3]]), **kwargs)
    compiled = tiny_llada.generate(torch.tensor([[2, 3]]), compile_config=CompileConfig(mode="default"), **kwargs)
    assert same(compiled, plain)
