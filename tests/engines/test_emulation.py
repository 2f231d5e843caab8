# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Decoding as SGLang and LMDeploy do it: single steps on written-out logits, refusals, and rows that would not end."""

import json
from types import SimpleNamespace

import pytest
import torch

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.engines.emulation import LMDeploy, joint_threshold, low_confidence, without_repetition
from hf_dparallel.generation.prediction import predict_tokens

from ..helpers import assert_same_row, make_llada2, make_sdar, refuses


def read_steps(golden_dir, engine):
    lines = (golden_dir / engine / "steps.jsonl").read_text().splitlines()
    for step in map(json.loads, lines):
        given = step.get("committed") or [[False] * len(row) for row in step["input_ids"]]
        yield step, torch.tensor(step["input_ids"]), torch.tensor(step["logits"]), torch.tensor(given)


def test_steps_of_sglang(golden_dir):
    for step, known, logits, given in read_steps(golden_dir, "sglang"):
        config, masked = step["config"], (known == step["mask_id"]) & ~given
        if step["algorithm"] == "LowConfidence":
            tokens, written = low_confidence(logits, masked, config["threshold"])
            is_over = ~masked.any(dim=1)
        else:
            is_first = torch.arange(known.shape[1]).expand_as(known) == 0
            logits = without_repetition(logits, known.roll(1, dims=1), is_first, config.get("penalty_lambda", 0))
            settings = SimpleNamespace(
                confidence_threshold=config["threshold"],
                editing_threshold=config["edit_threshold"],
                max_post_steps=config["max_post_edit_steps"],
            )
            post_steps = torch.tensor(step["post_edit_steps_before"]) + ~masked.any(dim=1)
            tokens, written, is_over = joint_threshold(logits, known, masked, ~masked & ~given, post_steps, settings)
            assert post_steps.tolist() == step["post_edit_steps_after"]
        assert torch.where(written, tokens, known).tolist() == step["output_ids"]
        assert is_over.tolist() == step["done"]


def test_steps_of_lmdeploy(golden_dir):
    for step, known, logits, _ in read_steps(golden_dir, "lmdeploy"):
        state, size = torch.tensor(step["state"]), step["block_length"]
        if step["strategy"] == "low_confidence_dynamic":
            rule = {"confidence_threshold": step["confidence_threshold"]}
        else:
            rule = {
                "denoising_steps": size,
                "min_commits": max(1, size // (step["denoising_steps"] or size)),
                "commit_order": "left_to_right" if step["strategy"] == "sequential" else "confidence",
            }
        part = LMDeploy(DiffusionGenerationConfig(max_new_tokens=size, block_length=size, engine="lmdeploy", **rule))
        columns = torch.arange(size).expand_as(known)
        prediction = predict_tokens(logits, step["mask_id"], columns=columns)
        prediction.masked, prediction.revisable = state == 0, state == 1
        tokens, written, is_over = part.step(prediction, None)
        # A block that enters a pass without a mask is stored.
        after = torch.where(is_over[:, None] & (state == 1), 2, torch.where(written, 1, state))
        # It also writes its predictions of the others down.
        assert tokens[written].tolist() == torch.tensor(step["token_ids"])[written].tolist()
        assert after.tolist() == step["state_after"]


PROMPTS = [[5, 9, 3], [7, 2, 8, 6], [4, 11, 12, 13, 14, 15, 16, 3, 2]]


@pytest.mark.parametrize("make", [make_sdar, make_llada2])
@pytest.mark.parametrize("rule", [{"entropy_threshold": 2.0}, {"entropy_bound": 3.0}, {"entropy_budget": 4.0}])
def test_our_rules_as_plug_ins_of_sglang(make, rule):
    """The tokens of `generate` over whole blocks, and a pass more to store each block of prompt and answer."""
    model, settings = make(), {"block_length": 4, "stop_at_eos": False, **rule}
    for prompt in PROMPTS:
        length = 16 - len(prompt)
        (ours,) = model.generate_many([prompt], max_new_tokens=length, **settings)
        (theirs,) = model.generate_many([prompt], max_new_tokens=length, engine="sglang", **settings)
        assert theirs.tokens.tolist() == ours.tokens.tolist()
        assert theirs.nfe == ours.nfe + 4
        assert theirs.error is None


@pytest.mark.parametrize(
    "settings",
    [
        {"engine": "sglang", "confidence_threshold": 0.3},
        {"engine": "sglang", "confidence_threshold": 0.3, "editing_threshold": 0.1, "penalty_lambda": 0.5},
        {"engine": "lmdeploy", "confidence_threshold": 0.3},
        {"engine": "lmdeploy", "min_commits": 2, "temperature": 0.7, "top_k": 1},
    ],
)
def test_a_row_in_a_batch_equals_the_row_alone(settings):
    model = make_sdar()
    settings |= {"max_new_tokens": 13, "eos_token_id": [1, 20, 21]}
    rows = list(model.generate_many(PROMPTS, **settings))
    assert len({row.nfe for row in rows}) > 1
    for prompt, row in zip(PROMPTS, rows, strict=True):
        (alone,) = model.generate_many([prompt], **settings)
        assert_same_row(alone, row, about=prompt)


def test_rows_that_enter_later_end_no_other():
    """LMDeploy goes on behind an end token in the block that begins with the end of the prompt."""
    model, settings = make_sdar(), {"engine": "lmdeploy", "confidence_threshold": 0.3, "max_new_tokens": 13}
    # The second row ends early, and makes room for the third one.
    prompts, settings["eos_token_id"] = PROMPTS[::-1], [39, 22]
    rows = list(model.generate_many(prompts, batch_size=2, **settings))
    assert 39 in rows[0].tokens[:3] and rows[1].nfe < rows[0].nfe
    for prompt, row in zip(prompts, rows, strict=True):
        (alone,) = model.generate_many([prompt], **settings)
        assert (alone.tokens.tolist(), alone.nfe) == (row.tokens.tolist(), row.nfe)


@pytest.mark.parametrize("settings", [{"engine": "sglang"}, {"engine": "lmdeploy"}])
def test_the_last_block_is_streamed_and_searched(settings):
    model, settings = make_sdar(), settings | {"confidence_threshold": 0.3, "max_new_tokens": 13, "stop_at_eos": False}
    (row,) = model.generate_many(PROMPTS[:1], **settings)
    streamed, looked_at = [], []
    streamer = SimpleNamespace(put=lambda value: streamed.extend(value.flatten().tolist()), end=lambda: None)

    def note(input_ids, scores, **kwargs):
        looked_at.append(input_ids.shape[1])
        return torch.tensor([False])

    model.generate(torch.tensor(PROMPTS[:1]), streamer=streamer, stopping_criteria=[note], **settings)
    assert streamed == PROMPTS[0] + row.tokens.tolist()
    assert looked_at == list(range(4, 17))


def test_a_call_takes_another_decoder_than_the_recipe():
    model = make_sdar()
    plain = model.generate(torch.tensor(PROMPTS[:1]), max_new_tokens=8)
    model.generation_config = DiffusionGenerationConfig(engine="sglang", confidence_threshold=0.9, max_new_tokens=8)
    recipe = model.generation_config.one_token_per_pass()
    assert torch.equal(model.generate(torch.tensor(PROMPTS[:1]), recipe), plain)
    with refuses("min_commits"):
        model.generate(torch.tensor(PROMPTS[:1]), min_commits=2)
    model.generate(torch.tensor(PROMPTS[:1]), min_commits=2, engine="hf-dparallel")


def _prefer(model, token):
    head = model.lm_head.forward
    model.lm_head.forward = lambda states: head(states).index_fill(-1, torch.tensor([token]), 1e4)


@pytest.mark.parametrize("editing", [{}, {"editing_threshold": 0.0}])
def test_a_row_that_would_never_end_fails(editing):
    """A model that predicts the mask token keeps SGLang in the block."""
    model = make_sdar()
    settings = {"engine": "sglang", "confidence_threshold": 0.9, "max_new_tokens": 8, "mask_token_id": 63} | editing
    next(model.generate_many(PROMPTS[:1], **settings))
    _prefer(model, 63)
    with pytest.raises(RuntimeError, match="forever"):
        next(model.generate_many(PROMPTS[:1], **settings))


def test_lmdeploy_keeps_the_mask_token_in_the_answer():
    """It follows by their state which places are decided, not by their tokens."""
    rows = []
    for token in (63, 5):
        model = make_sdar()
        _prefer(model, token)
        settings = {"engine": "lmdeploy", "min_commits": 2, "max_new_tokens": 8, "mask_token_id": 63}
        rows += model.generate_many(PROMPTS[:1], **settings)
    masks, others = rows
    assert masks.tokens.tolist() == [63] * 8 and others.tokens.tolist() == [5] * 8
    assert (masks.nfe, masks.commit_step.tolist()) == (others.nfe, others.commit_step.tolist())


def test_an_edit_may_mask_a_token_again():
    """As often as SGLang looks for edits; the number of passes is its own."""
    settings = {"engine": "sglang", "confidence_threshold": 0.2, "editing_threshold": 0.0, "max_post_steps": 2}
    (row,) = make_llada2().generate_many(PROMPTS[2:], max_new_tokens=13, eos_token_id=[1, 20, 21], **settings)
    assert row.nfe == 20


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"engine": "sglang"}, "engine"),
        ({"engine": "sglang", "confidence_threshold": 0.9, "temperature": 0.5}, "temperature"),
        ({"engine": "sglang", "confidence_threshold": 0.9, "min_commits": 2}, "min_commits"),
        ({"engine": "sglang", "entropy_threshold": 0.5, "editing_threshold": 0.5}, "entropy_threshold"),
        ({"engine": "lmdeploy", "entropy_threshold": 0.5}, "entropy_threshold"),
        ({"engine": "lmdeploy", "confidence_threshold": 0.9, "editing_threshold": 0.5}, "editing_threshold"),
        ({"engine": "lmdeploy", "confidence_threshold": 0.9, "suppress_tokens": [3]}, "suppress_tokens"),
        ({"engine": "lmdeploy", "denoising_steps": 2}, "denoising_steps"),
        ({"penalty_lambda": 0.5, "confidence_threshold": 0.9, "editing_threshold": 0.5}, "penalty_lambda"),
    ],
)
def test_what_an_engine_cannot_do_is_refused(settings, name):
    with refuses(name):
        make_sdar().generate(torch.tensor([[3, 4]]), max_new_tokens=8, **settings)
