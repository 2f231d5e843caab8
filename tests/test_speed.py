# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The benchmark counts what it says it counts; its times are not tested."""

import pytest
import torch
from speed import (
    Machine,
    computed_widths,
    floor_seconds,
    measure_decoding,
    random_model,
)


_LENGTHS = {"prompt_length": 8, "max_new_tokens": 256, "block_length": 32, "repeats": 1}


@pytest.fixture(scope="module")
def model():
    return random_model("tiny", torch.float32, "cpu")


@pytest.mark.parametrize(("passes", "cache"), [(30, None), (24, "dual")])
def test_decodes_in_the_step_counts_of_the_paper(model, passes, cache):
    steps = []
    hook = model.lm_head.register_forward_hook(lambda *args: steps.append(1))
    row = measure_decoding(model, Machine(1e9, 1e9), batch_size=2, passes=passes, cache=cache, **_LENGTHS)
    hook.remove()
    # The one whose memory is measured, and the timed one.
    assert len(steps) == 2 * passes
    assert row["passes"] == passes and row["tokens_per_s"] > 0
    assert row["part_of_floor"] == pytest.approx(row["floor_ms_per_pass"] / row["ms_per_pass"])


def test_passes_of_a_block_causal_model_are_counted():
    # The prompt ends in its first block, so that the answer lies in three.
    settings = {"batch_size": 2, "passes": 4, "max_new_tokens": 64, "block_length": 32, "repeats": 1}
    model = random_model("tiny-sdar", torch.float32, "cpu")
    widths = {}
    for cache in (None, "block"):
        with computed_widths(model) as widths[cache]:
            row = measure_decoding(model, Machine(1e9, 1e9), prompt_length=8, cache=cache, **settings)
        assert row["passes"] == len(widths[cache]) // 2 == 6
    assert set(widths[None]) == {96} and set(widths["block"]) == {32, 64}


def test_floor_of_a_pass(model):
    weights = sum(p.numel() for p in model.model.layers.parameters()) + model.lm_head.weight.numel()
    body = weights - model.lm_head.weight.numel()
    assert floor_seconds(model, Machine(1e6, 1e30), 100, 10) == pytest.approx(4 * weights / 1e6)
    keys_and_values = 2 * 1000 * 2 * 4 * 16
    expected = 4 * (weights + keys_and_values) / 1e6
    assert floor_seconds(model, Machine(1e6, 1e30), 100, 10, num_keys=1000) == pytest.approx(expected)
    expected = 2 * (body * 100 + model.lm_head.weight.numel() * 10) / 1e6
    assert floor_seconds(model, Machine(1e30, 1e6), 100, 10) == pytest.approx(expected)
