# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Editing (LLaDA2.1, https://huggingface.co/papers/2602.08676) against recorded runs and a naive loop."""

import json
import random

import pytest
import torch
from transformers import AutoModelForMaskedLM

from ..helpers import MASK, assert_same_row, exact_model, left_padded, make_dream, make_llada, make_sdar


PROMPTS = [[2, 3], [4, 5, 6, 7, 8], [9]]
LENGTHS = {"max_new_tokens": 16, "block_length": 6}


@torch.no_grad()
def naive_editing(model, prompt, threshold, editing_threshold, max_post_steps, max_new_tokens, block_length, eos=None):
    """One row, block by block. Returns tokens, passes and edits; with `eos` it ends where the answer is settled."""
    row, nfe, edits = prompt + [MASK] * max_new_tokens, 0, 0
    for start in range(len(prompt), len(row), block_length):
        block, post = range(start, min(start + block_length, len(row))), 0
        while True:
            masked = [i for i in block if row[i] == MASK]
            post += not masked
            if post > max_post_steps:
                break
            probs = model(torch.tensor([row])).logits[0].softmax(-1)
            nfe += 1
            probs[:, MASK] = 0
            best = {i: (probs[i].max().item(), probs[i].argmax().item()) for i in block}
            chosen = [i for i in masked if best[i][0] >= threshold] or masked and [max(masked, key=best.get)]
            edited = [i for i in block if row[i] not in (MASK, best[i][1]) and best[i][0] > editing_threshold]
            for i in [*chosen, *edited]:
                row[i] = best[i][1]
            edits += len(edited)
            settled = [i for i in block if i not in masked and i not in edited] if post < max_post_steps else block
            settled = [
                *range(start),
                *(i for i in block if all(j in settled and row[j] != MASK for j in range(start, i + 1))),
            ]
            answer = [row[i] for i in settled][len(prompt) :]
            if eos in answer:
                return answer[: answer.index(eos) + 1], nfe, edits
            if not masked and not edited:
                break
    return row[len(prompt) :], nfe, edits


@pytest.mark.parametrize("make", [make_llada, make_dream])
@pytest.mark.parametrize("max_post_steps", [0, 1, 16])
@pytest.mark.parametrize("eos", [None, 20])
def test_rows_of_a_batch_equal_the_naive_loop(make, max_post_steps, eos):
    model = exact_model(make)
    ids, attention_mask = left_padded(PROMPTS)
    settings = {"editing_threshold": 0.4, "max_post_steps": max_post_steps} | LENGTHS
    out = model.generate(
        ids,
        attention_mask=attention_mask,
        confidence_threshold=0.3,
        eos_token_id=eos,
        pad_token_id=0,
        stop_at_eos=eos is not None,
        return_dict_in_generate=True,
        **settings,
    )
    for row, prompt in enumerate(PROMPTS):
        tokens, nfe, edits = naive_editing(model, prompt, 0.3, eos=eos, **settings)
        assert out.sequences[row, ids.shape[1] :][: len(tokens)].tolist() == tokens
        assert (out.nfe[row], out.num_revisions[row]) == (nfe, edits)
    assert sum(out.num_revisions) > 0 or eos is not None or max_post_steps == 0


def check_recorded(model, run):
    """The published code decodes whole blocks, and cuts the answer at the end token afterwards."""
    params, prompt = run["params"], run["prompt_ids"]
    block_length, expected = params["block_length"], run["output_ids"]
    whole = -(-(len(prompt) + params["gen_length"]) // block_length) * block_length - len(prompt)
    out = model.generate(
        torch.tensor([prompt]),
        max_new_tokens=whole,
        block_length=block_length,
        confidence_threshold=params["threshold"],
        min_commits=params["num_to_transfer"],
        editing_threshold=params["editing_threshold"],
        max_post_steps=params["max_post_steps"],
        mask_token_id=params["mask_id"],
        eos_token_id=params["eos_id"],
        stop_at_eos=False,
        return_dict_in_generate=True,
    )
    tokens = out.sequences[0, len(prompt) :].tolist()
    assert tokens[: len(expected)] == expected
    has_ended_early = params["eos_early_stop"] and params["eos_id"] in expected
    assert out.nfe.item() >= run["nfe"] if has_ended_early else out.nfe.item() == run["nfe"]
    # Edits of the last pass behind the end of the answer are not in the record.
    assert has_ended_early or out.num_revisions.item() >= run["num_edits_seen"]


def recorded_runs(golden_dir, function):
    lines = (golden_dir / "llada2" / "generation.jsonl").read_text().splitlines()
    return [run for run in map(json.loads, lines) if run["function"] == function]


@pytest.mark.parametrize("part", [slice(None, None, 12), pytest.param(slice(None), marks=pytest.mark.slow)])
def test_recorded_runs(golden_dir, part):
    model = AutoModelForMaskedLM.from_pretrained(golden_dir / "llada2" / "model").eval()
    runs = recorded_runs(golden_dir, "llada21.generate")
    assert len(runs) == 79
    for run in runs[part]:
        check_recorded(model, run)


def test_recorded_runs_of_dllm(golden_dir):
    """Its sampler decodes the same, and returns the whole canvas, wherever the end token is in it."""
    model = AutoModelForMaskedLM.from_pretrained(golden_dir / "llada2" / "model").eval()
    runs = recorded_runs(golden_dir, "dllm.LLaDA21Sampler")
    assert len(runs) == 5
    for run in runs:
        params = run["params"] | {
            "gen_length": len(run["output_ids"]),
            "block_length": run["params"]["block_size"],
            "mask_id": 249,
            "eos_id": 244,
            "eos_early_stop": False,
        }
        check_recorded(model, run | {"params": params})


def check_rows_are_independent(num_cases):
    rng, revised = random.Random(0), 0
    models = [exact_model(make_llada), exact_model(make_dream), exact_model(make_sdar)]
    for _ in range(num_cases):
        model = rng.choice(models)
        settings = {
            "max_new_tokens": rng.choice([7, 12, 16]),
            "block_length": rng.choice([3, 4, 8]),
            "confidence_threshold": rng.choice([0.2, 0.5]),
            "editing_threshold": rng.choice([0.0, 0.3, 0.6]),
            "max_post_steps": rng.choice([0, 1, 5]),
            "cache_implementation": None if model.is_block_causal else rng.choice([None, "prefix", "dual"]),
            "max_active_blocks": rng.choice([1, 3]),
            "eos_token_id": rng.choice([None, 20]),
        }
        prompts = [[rng.randrange(2, 60) for _ in range(rng.randrange(1, 7))] for _ in range(3)]
        together = list(model.generate_many(prompts, batch_size=2, **settings))
        without_cache = [{}, {"use_cache": False}] if model.is_block_causal else [{}]
        for row, prompt in zip(together, prompts, strict=True):
            for change in without_cache:
                (alone,) = model.generate_many([prompt], **settings, **change)
                assert_same_row(row, alone, settings)
            num_blocks = -(-settings["max_new_tokens"] // settings["block_length"]) + 1
            assert row.nfe <= (num_blocks + 1) * (settings["block_length"] + settings["max_post_steps"] + 1)
            revised += row.num_revisions
    assert revised > num_cases


def test_rows_are_independent():
    check_rows_are_independent(6)


@pytest.mark.slow
def test_rows_are_independent_in_many_cases():
    check_rows_are_independent(200)


def test_an_edit_is_never_sampled():
    """The second thoughts of a model are those it has at temperature 0."""
    model, calls = make_llada(), []

    def score(inputs, where, *args, **kwargs):
        calls.append(None)
        logits = torch.zeros(*where.shape, 64)
        # Nearly even between two tokens at first, then a little more for the other one.
        logits[..., 5], logits[..., 6] = (9.0, 9.1) if len(calls) == 1 else (9.2, 9.1)
        return logits

    model.score = score
    settings = {"max_new_tokens": 8, "block_length": 8, "confidence_threshold": 0.1, "temperature": 1.0}
    for seed in range(10):
        torch.manual_seed(seed)
        calls.clear()
        out = model.generate(torch.tensor([[2]]), editing_threshold=0.5, max_post_steps=1, **settings)
        assert out[0, 1:].tolist() == [5] * 8


@pytest.mark.parametrize("revision", [{"editing_threshold": 0.4}, {"revocation_threshold": 0.4}])
def test_a_token_does_not_repeat_itself(revision):
    """What the model prefers at every place, each time another token, stays, though the row has it by then."""
    model = make_llada()

    def score(inputs, where, **kwargs):
        # Behind a prompt of one token, and in the copy that verified commits add.
        preferred, other = (torch.arange(64) == (where % 4 + first)[..., None] for first in (5, 30))
        return 12.0 * preferred + 11.0 * other

    model.score = score
    settings = {"max_new_tokens": 4, "block_length": 4, "confidence_threshold": 1.0, "min_commits": 2}
    settings |= {"repetition_penalty": 1.3}
    out = model.generate(torch.tensor([[2]]), return_dict_in_generate=True, **settings, **revision)
    assert (out.sequences[0].tolist(), out.num_revisions.item()) == ([2, 6, 7, 8, 5], 0)


def test_without_post_steps_an_edited_block_stays_open_beside_one_with_masks():
    model, passes = make_llada(), iter([{0: 5}, {0: 6, 1: 7}, {0: 8, 2: 9, 3: 9}])

    def score(inputs, where, *args, **kwargs):
        # By the place behind a prompt of one token; elsewhere nothing is preferred.
        wanted = torch.full((129,), -1)
        for place, token in next(passes).items():
            wanted[place + 1] = token
        return 20.0 * (torch.arange(64) == wanted[where][..., None])

    model.score = score
    settings = {"max_new_tokens": 4, "block_length": 2, "max_active_blocks": 2, "confidence_threshold": 0.5}
    out = model.generate(torch.tensor([[2]]), editing_threshold=0.5, max_post_steps=0, stop_at_eos=False, **settings)
    assert out[0].tolist() == [2, 8, 7, 9, 9]


def test_editing_and_verifying_exclude_one_another():
    with pytest.raises(ValueError, match="`editing_threshold=0.5` does not go with `revocation_threshold=0.5`"):
        make_llada().generate(
            torch.tensor([[2]]), entropy_threshold=1.0, editing_threshold=0.5, revocation_threshold=0.5
        )
