# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""How a pass is run: the head, the masks, and keys and values from earlier passes."""

import pytest
import torch

from hf_dparallel.generation.configuration import resolve
from hf_dparallel.generation.decoder import Decoder

from ..helpers import exact_model, make_block_a2d, make_dream, make_fast_dllm, make_llada, make_nemotron, make_sdar
from .naive import decode_three_rows


@pytest.mark.parametrize(
    ("make", "cache", "origin"),
    [
        (make_llada, None, None),
        (make_dream, "prefix", None),
        (make_dream, "dual", None),
        (make_sdar, "block", None),
        (make_fast_dllm, "block", None),
        (make_block_a2d, "block", "answer"),
        (make_fast_dllm, "block", "answer"),
        (make_nemotron, "block", None),
        (make_nemotron, None, None),
    ],
)
def test_logits_are_those_of_the_model_for_each_row_alone(make, cache, origin):
    """In every pass where that is exact, and in the others where a row enters its block."""
    model = exact_model(make)
    settings = {"max_new_tokens": 8, "block_length": 4, "entropy_threshold": 1.0, "stop_at_eos": False}
    settings |= {"block_origin": origin}
    cached = {"use_cache": False} if cache is None else {"cache_implementation": cache}
    decoder = Decoder(model, resolve(model, None, **cached, **settings), [])
    canvas, logits_of, num_compared = decoder.canvas, decoder.runner.logits, []

    def checked(wanted):
        logits = logits_of(wanted)
        for row in range(len(canvas)):
            if cache in ("prefix", "dual") and canvas.step_in_block[row] > 0:
                continue
            ids = canvas.sequences[row, canvas.prompt_start(row) :][None]
            is_open = canvas.is_open[row, wanted[row]]
            columns = wanted[row][is_open] - canvas.prompt_start(row)
            mask = None
            if model.attention != "full":
                ids = ids[:, : canvas.open_edges(row)[1] - canvas.prompt_start(row)]
            if model.attention == "block_causal":
                block = (torch.arange(ids.shape[1]) - (canvas.prompt_lengths[row] if origin else 0)) // 4
                mask = (block[None, :] <= block[:, None])[None, None]
            if model.attention == "causal_past":
                columns = columns - canvas.is_first[row, wanted[row]][is_open].long()
            torch.testing.assert_close(logits[row][is_open], model(ids, attention_mask=mask).logits[0, columns])
            num_compared.append(len(columns))
        return logits

    decoder.runner.logits = checked
    decode_three_rows(decoder)
    assert len(num_compared) >= 6 and min(num_compared) > 0


def test_the_head_runs_on_open_masks_only(tiny_llada):
    scored = []
    tiny_llada.lm_head.register_forward_hook(lambda module, args, output: scored.append(output.shape[1]))
    tiny_llada.generate(torch.tensor([[2, 3]]), max_new_tokens=16, block_length=8, stop_at_eos=False)
    assert scored == [8, 7, 6, 5, 4, 3, 2, 1] * 2


def test_without_padding_a_pass_has_no_mask(monkeypatch):
    model, masks = make_sdar(), []
    score = model.score

    def recording(inputs, where, **kwargs):
        masks.append(inputs["attention_mask"])
        return score(inputs, where, **kwargs)

    monkeypatch.setattr(model, "score", recording)
    model.generate(torch.tensor([[2, 3, 4, 5]]), max_new_tokens=8, denoising_steps=4)
    is_masked = [not isinstance(mask, dict) for mask in masks]
    assert is_masked == [True, False, True, False]
