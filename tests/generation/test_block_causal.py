# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Decoding of block-causal models: the published samplers' tokens and calls, and a cache that changes nothing."""

import json

import pytest
import torch
from transformers import (
    AutoModelForMaskedLM,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)


def golden_runs(path, is_compared=lambda run: True):
    """The recorded runs: all of them, and a few with each kind of setting."""
    runs = [run for run in map(json.loads, path.read_text().splitlines()) if is_compared(run)]
    return runs, runs[::9]


def official_settings(params):
    """Our settings for those of a published sampler, beside the number of tokens."""
    block_length, steps = params["block_length"], params["denoising_steps"]
    settings = {"block_length": block_length}
    strategy = params["remasking_strategy"]
    if strategy == "entropy_bounded":
        return settings | {"entropy_budget": params["eb_threshold"]}
    if strategy == "low_confidence_dynamic":
        threshold = params.get("confidence_threshold", params.get("dynamic_threshold"))
        return settings | {"confidence_threshold": threshold, "min_commits": max(block_length // steps, 1)}
    order = "left_to_right" if strategy == "sequential" else "confidence"
    return settings | {"steps_per_block": steps, "commit_order": order}


def official_processors(params):
    """The published code takes the confidence after these, and ours from what processors return."""
    processors = [TemperatureLogitsWarper(params["temperature"])] if params["temperature"] != 1 else []
    if params["top_k"]:
        processors.append(TopKLogitsWarper(params["top_k"]))
    if params["top_p"] < 1:
        processors.append(TopPLogitsWarper(params["top_p"]))
    return LogitsProcessorList(processors)


def decode(model, run, num_tokens, stop_ids=None, processors=None, **settings):
    steps = settings.pop("steps_per_block", None)
    if steps is not None:
        num_blocks = -(-num_tokens // settings["block_length"])
        steps = round(steps * num_tokens / settings["block_length"])
        settings["denoising_steps"] = min(max(steps, num_blocks), num_tokens)
    out = model.generate(
        torch.tensor([run["prompt_ids"]]),
        logits_processor=processors,
        max_new_tokens=num_tokens,
        stop_at_eos=stop_ids is not None,
        eos_token_id=stop_ids or [0],
        return_dict_in_generate=True,
        **settings,
    )
    return out.sequences[0, len(run["prompt_ids"]) :].tolist(), out.nfe.item(), out.commit_step[0].tolist()


def steps_in_block(commit_step, prompt_length, block_length):
    """The pass within its block, from 1, that has set each token, from the pass within the canvas, from 0."""
    steps, previous, last = [], -1, -1
    for place, step in enumerate(commit_step):
        if (prompt_length + place) % block_length == 0:
            previous = last
        steps.append(step - previous)
        last = max(last, step)
    return steps


def up_to(tokens, ends):
    end = next((place for place, token in enumerate(tokens) if token in ends), len(tokens))
    return tokens[: end + 1]


def check_sdar(model, run):
    """Our passes are the denoising calls: no call only stores a block, and none only reads the prompt."""
    params, expected = run["params"], run["output_ids"]
    settings, processors = official_settings(params), official_processors(params)
    stop_ids = params.get("stopping_criteria_idx")
    tokens, nfe, commit_step = decode(model, run, len(expected), stop_ids, processors, **settings)
    if stop_ids is not None:
        # Published code decodes the block with the end token to its end.
        assert up_to(tokens, stop_ids) == up_to(expected, stop_ids) and nfe <= run["calls_denoise"]
    else:
        assert tokens == expected and nfe == run["calls_denoise"]
        assert nfe == run["calls_total"] - run["calls_store"] - run["calls_prefill"]
        assert steps_in_block(commit_step, len(run["prompt_ids"]), params["block_length"]) == run["unmask_step"]


def check_engine(model, run):
    tokens, nfe, commit_step = decode(model, run, len(run["output_ids"]), **official_settings(run["params"]))
    assert tokens == run["output_ids"]
    assert [step + 1 for step in commit_step] == run["first_unmask_steps"]
    # Passes that would decide tokens behind the answer only are saved.
    assert nfe == max(run["first_unmask_steps"]) <= run["calls_denoise"]


def check_llada2(model, run):
    params, prompt_length = run["params"], len(run["prompt_ids"])
    block_length, num_tokens = params["block_length"], len(run["output_ids"])
    settings = {
        "block_length": block_length,
        "mask_token_id": params["mask_id"],
        "confidence_threshold": params["threshold"],
        "min_commits": block_length // min(params["steps"], params["gen_length"] // params["minimal_topk"]),
    }
    has_ended = params["eos_id"] in run["output_ids"]
    whole = -(-(prompt_length + params["gen_length"]) // block_length) * block_length - prompt_length
    stop_ids = [params["eos_id"]] if has_ended else None
    tokens, nfe, commit_step = decode(model, run, whole, stop_ids, **settings)
    assert tokens[:num_tokens] == run["output_ids"]
    if has_ended:
        assert nfe <= run["nfe"]
    else:
        assert nfe == run["nfe"]
        assert steps_in_block(commit_step, prompt_length, block_length)[:num_tokens] == run["unmask_step"]


def is_greedy(run):
    # Draws are made with torch's own numbers, in another order than ours.
    return run["greedy"] is not None


def is_even(run):
    """Whether the steps of a block divide it, and no end token in the prompt ends the answer before it begins."""
    params = run["params"]
    if run["function"] != "llada2.generate" or "quirk" in run:
        return False
    return params["block_length"] % min(params["steps"], params["gen_length"] // params["minimal_topk"]) == 0


GOLDENS = {
    "sdar": ("sdar/generation.jsonl", 229, is_greedy, check_sdar),
    "engine": ("sdar/engine.jsonl", 105, lambda run: True, check_engine),
    "llada2": ("llada2/generation.jsonl", 60, is_even, check_llada2),
}


@pytest.mark.parametrize("name", GOLDENS)
def test_equals_the_published_samplers(golden_dir, name):
    path, num_runs, is_compared, check = GOLDENS[name]
    runs, sample = golden_runs(golden_dir / path, is_compared)
    assert len(runs) == num_runs
    model = AutoModelForMaskedLM.from_pretrained(golden_dir / path.split("/")[0] / "model").eval()
    for run in sample:
        check(model, run)


@pytest.mark.slow
@pytest.mark.parametrize("name", GOLDENS)
def test_equals_the_published_samplers_in_all_runs(golden_dir, name):
    path, _, is_compared, check = GOLDENS[name]
    model = AutoModelForMaskedLM.from_pretrained(golden_dir / path.split("/")[0] / "model").eval()
    for run in golden_runs(golden_dir / path, is_compared)[0]:
        check(model, run)
