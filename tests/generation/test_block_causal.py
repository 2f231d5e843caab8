# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Decoding of block-causal models: the published samplers' tokens and calls, and a cache that changes nothing."""

import json
import random

import pytest
import torch
from transformers import (
    AutoModelForMaskedLM,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from hf_dparallel.generation.configuration import resolve

from ..helpers import exact_model, left_padded, make_llada, make_llada2, make_sdar


def golden_runs(path, is_compared=lambda run: True):
    """The recorded runs: all of them, and a few with each kind of setting."""
    runs = [run for run in map(json.loads, path.read_text().splitlines()) if is_compared(run)]
    return runs, runs[::16]


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
    """Whether the steps of a block divide it, and no end token in the prompt ends the answer before it begins.

    The others are compared with nothing. Where steps do not divide a block, the published code commits at least one
    token more in its first passes than in its later ones, and `min_commits` is the same for all. An end token of the
    prompt that ends the answer is a fault.
    """
    params = run["params"]
    if run["function"] != "llada2.generate" or "quirk" in run:
        return False
    return params["block_length"] % min(params["steps"], params["gen_length"] // params["minimal_topk"]) == 0


def is_of_dllm(run):
    return run["function"] == "dllm.LLaDA2Sampler"


def check_dllm(model, run):
    """The sampler of dllm decodes the same, returns the whole canvas, and does not stop at the end token."""
    params = run["params"]
    assert params["steps_per_block"] == params["block_size"]
    settings = {"block_length": params["block_size"], "confidence_threshold": params["threshold"]}
    tokens, nfe, commit_step = decode(model, run, len(run["output_ids"]), mask_token_id=249, **settings)
    assert tokens == run["output_ids"] and nfe == run["nfe"]
    assert steps_in_block(commit_step, len(run["prompt_ids"]), params["block_size"]) == run["unmask_step"]


GOLDENS = {
    "sdar": ("sdar/generation.jsonl", 229, is_greedy, check_sdar),
    "engine": ("sdar/engine.jsonl", 105, lambda run: True, check_engine),
    "llada2": ("llada2/generation.jsonl", 60, is_even, check_llada2),
    "dllm": ("llada2/generation.jsonl", 5, is_of_dllm, check_dllm),
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


def random_case(seed):
    """Prompts of any lengths, and settings of any kind, that end rows at different times."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(2, 62) for _ in range(rng.randrange(1, 14))] for _ in range(rng.randrange(1, 5))]
    rules = [
        {},
        {"entropy_threshold": rng.uniform(0, 3)},
        {"confidence_threshold": rng.uniform(0.01, 1), "min_commits": rng.randrange(1, 3)},
        {"entropy_threshold": 1.5, "max_active_blocks": rng.randrange(2, 4), "block_add_threshold": rng.random() or 1},
    ]
    return prompts, {
        "max_new_tokens": rng.randrange(1, 20),
        "block_length": rng.choice([1, 2, 3, 4, 8]),
        "eos_token_id": rng.randrange(2, 62),
        "stop_at_eos": rng.random() < 0.7,
        "output_certainty": rng.random() < 0.3,
        "return_dict_in_generate": True,
        **rng.choice(rules),
    }


def check_cache(model, seed):
    prompts, kwargs = random_case(seed)
    ids, attention_mask = left_padded(prompts)
    cached = model.generate(ids, attention_mask=attention_mask, **kwargs)
    computed = model.generate(ids, attention_mask=attention_mask, use_cache=False, **kwargs)
    for name in cached:
        torch.testing.assert_close(cached[name], computed[name], equal_nan=True, msg=f"{name} of {prompts}, {kwargs}")


@pytest.mark.parametrize("seed", range(8))
def test_cache_changes_nothing(seed):
    check_cache(exact_model(make_sdar), seed)


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_sdar, make_llada2])
def test_cache_changes_nothing_in_many_cases(make):
    model = exact_model(make)
    # The grouped products of experts know no float64.
    model.set_experts_implementation("eager")
    for seed in range(500):
        check_cache(model, seed)


def computed_widths(model, prompts, **kwargs):
    """The columns that each pass computes, and the rows and keys that its attention has."""
    shapes = []

    def record(module, args, kwargs, output):
        cache = kwargs.get("past_key_values")
        keys = cache.layers[0].planned.num_keys if cache is not None else None
        shapes.append((*args[0].shape[:2], keys) if args else (*kwargs["hidden_states"].shape[:2], keys))

    hook = model.model.layers[0].register_forward_hook(record, with_kwargs=True)
    ids, attention_mask = left_padded(prompts)
    out = model.generate(ids, attention_mask=attention_mask, return_dict_in_generate=True, **kwargs)
    hook.remove()
    return out, shapes


def test_a_pass_computes_what_is_open_and_what_was_decided_last():
    kwargs = {"max_new_tokens": 12, "block_length": 4, "denoising_steps": 6, "stop_at_eos": False}
    out, shapes = computed_widths(make_sdar(), [[2, 3, 4, 5, 6]], **kwargs)
    # One token of the prompt is in the first block, and three masks behind the answer complete the last one.
    assert out.nfe.item() == 7
    assert shapes == [(1, 8, 8), (1, 4, 8), (1, 8, 12), (1, 4, 12), (1, 8, 16), (1, 4, 16), (1, 8, 20)]
    # Rows in step share the window.
    _, shapes = computed_widths(make_sdar(), [[2, 3, 4, 5, 6], [7]], **kwargs)
    assert shapes[:4] == [(2, 8, 8), (2, 4, 8), (2, 8, 12), (2, 4, 12)]


def test_rows_in_different_blocks_are_independent_where_none_is_padded():
    """A pass over the last block alone needs no mask, and one over several rows in blocks of their own does."""
    model = exact_model(make_sdar)
    prompts = [[2 + (7 * row + k) % 60 for k in range(4)] for row in range(8)]
    kwargs = {"max_new_tokens": 16, "entropy_threshold": 1.0, "stop_at_eos": False}
    for prompt, row in zip(prompts, model.generate_many(prompts, batch_size=3, **kwargs), strict=True):
        alone = next(model.generate_many([prompt], **kwargs))
        assert (row.tokens.tolist(), row.nfe) == (alone.tokens.tolist(), alone.nfe)


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


@pytest.mark.parametrize(
    ("denoising_steps", "passes"), [(4, [1, 1, 1, 1]), (7, [2] * 4), (8, [2] * 4), (16, [3, 4, 4, 4])]
)
def test_one_schedule_for_all_blocks(denoising_steps, passes):
    """Also for the first, which has fewer masks."""
    run = {"prompt_ids": [2, 3, 4, 5, 6]}
    _, _, commit_step = decode(make_sdar(), run, 16, block_length=4, denoising_steps=denoising_steps)
    blocks = torch.tensor(steps_in_block(commit_step, 5, 4)).split([3, 4, 4, 4, 1])
    assert [int(block.max()) for block in blocks[:4]] == passes


def test_masks_behind_the_answer_are_not_counted():
    out = make_sdar().generate(
        torch.tensor([[2, 3, 4]]), max_new_tokens=6, stop_at_eos=False, return_dict_in_generate=True
    )
    assert out.tokens_per_forward.item() * out.nfe.item() == pytest.approx(6)


def test_a_block_may_be_as_long_as_the_longest_sequence():
    out = make_sdar(max_position_embeddings=16).generate(torch.tensor([[2]]), max_new_tokens=3, block_length=16)
    assert out.shape == (1, 4) and not (out == 63).any()


def test_streams_what_it_returns():
    streamed = []

    class Streamer:
        def put(self, value):
            streamed.extend(value.flatten().tolist())

        def put_draft(self, value):
            drafts.append(len(streamed) + len(value))

        def end(self):
            streamed.append("end")

    drafts = []
    out = make_sdar().generate(
        torch.tensor([[2, 3, 4, 5, 6]]),
        max_new_tokens=10,
        entropy_threshold=0.5,
        stop_at_eos=False,
        streamer=Streamer(),
    )
    assert streamed == [*out[0].tolist(), "end"]
    # No draft goes beyond the answer.
    assert drafts and max(drafts) <= 15


def test_settings_of_the_other_kind_of_attention_are_refused():
    prompt, sdar, llada = torch.tensor([[2, 3, 63]]), make_sdar(), make_llada()
    refused = {
        "`cache_implementation='dual'` is not for the attention of SDAR": {"cache_implementation": "dual"},
        "`cache_refresh_interval=2` makes an approximation better": {"cache_refresh_interval": 2},
        "`block_length=129` is more than the 128 tokens": {"block_length": 129},
        "`max_new_tokens=0` fills in": {"max_new_tokens": 0},
        "`revocation_threshold=0.5` verifies": {"revocation_threshold": 0.5, "entropy_threshold": 0.5},
    }
    for message, kwargs in refused.items():
        with pytest.raises(ValueError, match=message):
            sdar.generate(prompt if "max_new_tokens" in kwargs else prompt[:, :2], **kwargs)
    with pytest.raises(ValueError, match="`cache_implementation='block'` is not for the attention of LLaDA"):
        llada.generate(prompt[:, :2], cache_implementation="block")


def test_settings_follow_from_the_model():
    model = make_sdar(block_size=8)
    resolved = resolve(model)
    assert (resolved.block_length, resolved.cache_implementation) == (8, "block")
    assert resolve(model, resolved).settings() == resolved.settings()
    assert resolve(model, use_cache=False).cache_implementation is None
    # What other recipes are compared with has the cache, which is exact.
    assert resolve(model, resolved.one_token_per_pass()).cache_implementation == "block"
    assert resolve(model, model.generation_config, block_length=4).block_length == 4
    model.train().gradient_checkpointing_enable()
    assert resolve(model).cache_implementation is None
