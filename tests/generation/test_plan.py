# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What a pass computes: its columns, and that these are enough for the tokens that it scores."""

import pytest
import torch

from hf_dparallel.generation.configuration import resolve
from hf_dparallel.models.backbones import CACHE_ARGUMENT

from ..helpers import left_padded, make_block_a2d, make_fast_dllm, make_llada, make_nemotron, make_sdar


SETTINGS = {"block_length": 4, "stop_at_eos": False}
IN_STEP = {"max_new_tokens": 12, "denoising_steps": 6}
ONE = {"max_new_tokens": 16, "block_length": 8, "cache_implementation": "dual", "entropy_threshold": 0.0}
TWO = {"max_new_tokens": 8, "max_active_blocks": 2, "block_add_threshold": 0.25, "cache_implementation": "dual"}


# Prompts, and the columns and keys of each pass.
@pytest.mark.parametrize(
    ("make", "prompts", "settings", "computed"),
    [
        # One token of the prompt is in the first block, and three masks after the answer complete the last one.
        (make_sdar, [[2, 3, 4, 5, 6]], IN_STEP, [(8, 8), (4, 8), (8, 12), (4, 12), (8, 16), (4, 16), (8, 20)]),
        # Counted from the answer, blocks end where the prompt ends, and the last one may be shorter.
        (
            make_block_a2d,
            [[2, 3, 4, 5, 6]],
            {"max_new_tokens": 10, "denoising_steps": 5, "block_origin": "answer"},
            [(9, 9), (4, 9), (8, 13), (4, 13), (6, 15)],
        ),
        # Rows in step share the window.
        (make_sdar, [[2, 3, 4, 5, 6], [7]], IN_STEP, [(8, 8), (4, 8), (8, 12), (4, 12)]),
        # The column that predicts the first token is computed beside a block, and one pass is for that token alone.
        (make_fast_dllm, [[2, 3, 4, 5, 6]], IN_STEP, [(8, 8), (5, 8), (9, 12), (5, 12), (5, 12), (9, 16)]),
        # So is a causal past: a block is computed as past with the first pass over the next one.
        (make_nemotron, [[2, 3, 4, 5, 6]], IN_STEP, [(9, 9), (5, 9), (5, 9), (9, 13), (5, 13), (5, 13), (9, 17)]),
        (make_llada, [[2, 3, 4]], ONE, ([(19, 19)] + [(8, 19)] * 7) * 2),
        # All is computed when a block opens beside another one.
        (make_llada, [[2, 3]], TWO | {"entropy_threshold": 0.0}, [(10, 10), (10, 10), (8, 10)]),
    ],
)
def test_what_a_pass_computes(make, prompts, settings, computed):
    model, shapes = make(), []

    def record(module, args, kwargs, output):
        assert len(output) == len(prompts)
        shapes.append((output.shape[1], kwargs[CACHE_ARGUMENT].layers[0].planned.num_keys))

    model.model.layers[0].register_forward_hook(record, with_kwargs=True)
    ids, attention_mask = left_padded(prompts)
    model.generate(ids, attention_mask=attention_mask, **(SETTINGS | settings))
    assert shapes[: len(computed)] == computed


@pytest.mark.parametrize("origin", ["sequence", "answer"])
@pytest.mark.parametrize("make", [make_sdar, make_block_a2d, make_fast_dllm, make_nemotron])
def test_a_long_prompt_is_stored_in_runs_with_small_masks(monkeypatch, make, origin):
    model, lines = make().double(), []
    prompts = [[2 + (7 * row + k) % 60 for k in range(length)] for row, length in enumerate((90, 61, 3))]
    kwargs = SETTINGS | {"max_new_tokens": 12, "entropy_threshold": 1.0, "block_origin": origin}
    expected = [(row.tokens.tolist(), row.nfe) for row in model.generate_many(prompts, **kwargs)]
    monkeypatch.setattr("hf_dparallel.generation.plan._LONGEST_RUN", 16)

    def record(module, args, kwargs):
        lines.append(args[0].shape[1])

    model.model.layers[0].register_forward_pre_hook(record, with_kwargs=True)
    assert [(row.tokens.tolist(), row.nfe) for row in model.generate_many(prompts, **kwargs)] == expected
    assert max(lines) == 16 and lines.count(16) > 5


def run_out_of_memory(module, args):
    raise torch.OutOfMemoryError


@pytest.mark.parametrize("make", [make_sdar, make_block_a2d, make_fast_dllm, make_nemotron])
def test_rows_at_different_blocks_are_stored_anew(monkeypatch, make):
    model, rows = make().double(), {}
    prompts = [torch.tensor([2 + (7 * row + k) % 60 for k in range(length)]) for row, length in enumerate((50, 33))]
    kwargs = SETTINGS | {"max_new_tokens": 40, "entropy_threshold": 1.0}
    expected = [(row.tokens.tolist(), row.nfe) for row in model.generate_many(prompts, **kwargs)]
    monkeypatch.setattr("hf_dparallel.generation.plan._LONGEST_RUN", 16)
    decoder = model.make_decoder(resolve(model, **kwargs), [])
    decoder.add_prompts({0: prompts[0]})
    with torch.no_grad():
        while decoder.canvas.status[0].open_from < 7:
            decoder.step()
        decoder.add_prompts({1: prompts[1]})
        for _ in range(2):
            decoder.step()
        # A pass that does not fit into memory is run again.
        handle = model.lm_head.register_forward_pre_hook(run_out_of_memory)
        with pytest.raises(torch.OutOfMemoryError):
            decoder.step()
        handle.remove()
        while decoder:
            rows |= {row.index: (row.tokens.tolist(), row.nfe) for row in decoder.step()}
    assert [rows[0], rows[1]] == expected
