# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Soft decoding (DMax, https://huggingface.co/papers/2604.08302) against recorded runs and a naive loop."""

import json

import pytest
import torch
from transformers import AutoModelForMaskedLM, CompileConfig
from transformers.generation.streamers import BaseStreamer

from hf_dparallel import enable_diffusion_generation

from ..helpers import (
    MASK,
    RemoteCodeConfig,
    RemoteCodeModel,
    make_llada,
    with_equal_settings,
)


LENGTHS = {"max_new_tokens": 16, "block_length": 6}


def recorded_runs(golden_dir):
    lines = (golden_dir / "dmax" / "generation.jsonl").read_text().splitlines()
    # Mixtures of one token with the mask token: not the ten runs with two tokens, which the published function passes
    # to none of its callers. In no run a block was left with masks, as the published rules do above 0.9.
    return [run for run in map(json.loads, lines) if run["params"]["top_k"] == 1]


@pytest.mark.parametrize("part", [slice(None, None, 12), pytest.param(slice(None), marks=pytest.mark.slow)])
def test_recorded_runs(golden_dir, part):
    """Rows of a batch, prompts of several lengths among them, have the recorded tokens and calls."""
    model = AutoModelForMaskedLM.from_pretrained(golden_dir / "dmax" / "model").eval()
    runs = recorded_runs(golden_dir)
    assert len(runs) == 50
    settings_of = {
        "soft_threshold": lambda run: run["params"]["threshold"],
        "block_length": lambda run: run["params"]["block_length"],
        # The published code decodes whole blocks.
        "max_new_tokens": lambda run: len(run["output_ids"]),
    }
    pairs = [(run, {name: of(run) for name, of in settings_of.items()}) for run in runs[part]]
    for settings, group in with_equal_settings(pairs):
        prompts = [run["prompt_ids"] for run in group]
        rows = model.generate_many(prompts, mask_token_id=249, eos_token_id=244, **settings)
        for run, row in zip(group, rows, strict=True):
            assert row.tokens.tolist() == run["output_ids"]
            # The prompt is stored with the first pass here, and by a call of its own there.
            assert row.nfe == run["decode_calls"] == run["nfe_reported"] - 1


@pytest.mark.parametrize("max_active_blocks", [1, 2])
def test_decoding_ends_though_the_model_never_does(max_active_blocks):
    """A block takes at most as many passes as it has tokens, also where each pass changes all of them."""
    model, calls = make_llada(), []

    def score(inputs, where, **kwargs):
        calls.append(None)
        logits = torch.zeros(*where.shape, 64)
        logits[..., 5 + len(calls) % 2] = 4.0
        return logits

    model.score = score
    out = model.generate(
        torch.tensor([[2]]),
        max_new_tokens=12,
        block_length=4,
        soft_threshold=0.0,
        max_active_blocks=max_active_blocks,
        return_dict_in_generate=True,
    )
    assert out.nfe.item() == len(calls) == 12
    assert out.num_revisions.item() >= 3 * 4 * 3


def test_no_token_is_revised_by_nan():
    model, calls = make_llada(), []

    def score(inputs, where, **kwargs):
        calls.append(None)
        return torch.zeros(*where.shape, 64) if len(calls) == 1 else torch.full((*where.shape, 64), torch.nan)

    model.score = score
    with pytest.raises(FloatingPointError, match="NaN at step 1 of row 0"):
        model.generate(torch.tensor([[2]]), max_new_tokens=4, block_length=4, soft_threshold=0.0)


def test_a_streamer_gets_tokens_that_stay():
    class Streamer(BaseStreamer):
        def __init__(self):
            self.tokens, self.drafts = [], 0

        def put(self, value):
            self.tokens += value.flatten().tolist()

        def put_draft(self, value):
            self.drafts += 1

        def end(self):
            pass

    streamer = Streamer()
    out = make_llada().generate(torch.tensor([[2, 3]]), soft_threshold=0.3, streamer=streamer, **LENGTHS)
    assert streamer.tokens == out[0].tolist() and streamer.drafts > 0


def test_bfloat16_models_get_embeddings_of_their_dtype():
    model = make_llada().bfloat16()
    out = model.generate(torch.tensor([[2, 3]]), soft_threshold=0.3, stop_at_eos=False, **LENGTHS)
    assert MASK not in out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"editing_threshold": 0.5}, "`editing_threshold=0.5` does not go with `soft_threshold=0.5`"),
        ({"revocation_threshold": 0.5}, "`soft_threshold=0.5` does not go with `revocation_threshold=0.5`"),
        ({"entropy_threshold": 0.5}, "`soft_threshold=0.5` and `entropy_threshold=0.5` are two commit rules"),
        ({"compile_config": CompileConfig()}, "`soft_threshold=0.5` does not go with `compile_config=CompileConfig"),
    ],
)
def test_what_makes_no_sense_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        make_llada().generate(torch.tensor([[2]]), soft_threshold=0.5, **settings)


def test_classes_that_take_no_embeddings_are_refused():
    model = enable_diffusion_generation(RemoteCodeModel(RemoteCodeConfig()), MASK, shift_logits=True)
    with pytest.raises(ValueError, match="`soft_threshold=0.5` feeds mixtures of embeddings, and RemoteCodeModel"):
        model.generate(torch.tensor([[2]]), soft_threshold=0.5, max_new_tokens=4)


def test_a_block_takes_no_more_passes_than_it_has_tokens():
    """Also where the answer is shorter than a block."""
    settings = {"max_new_tokens": 8, "soft_threshold": 0.2, "stop_at_eos": False, "return_dict_in_generate": True}
    prompts = torch.tensor([[2, 3, 4], [9, 3, 4], [30, 3, 4]])
    out = make_llada().generate(prompts, block_length=8, **settings)
    longer = make_llada().generate(prompts, block_length=2000, **settings)
    assert out.nfe.max() == 8
    assert torch.equal(longer.nfe, out.nfe) and torch.equal(longer.sequences, out.sequences)
