# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The published samplers' tokens, in as many passes: recorded runs of official code on tiny models, one table of them.

Each recording says what our settings are for its run, and how a row of ours is compared with it.
"""

import json
from collections.abc import Callable
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pytest
import torch
from transformers import (
    AutoModelForMaskedLM,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from hf_dparallel_rules import commit_rules
from hf_dparallel_rules.commit_rules import commit_by_count, commit_rule
from hf_dparallel_rules.settings import SETTINGS

from ..helpers import with_equal_settings
from .naive import steps_in_block


class Recording(NamedTuple):
    """Recorded runs, our settings for one, and its comparison with a row."""

    path: str
    num_runs: int
    settings: Callable[[dict], dict]
    check: Callable
    is_compared: Callable[[dict], bool] = lambda run: True
    # The parts of a run that are decoded by themselves.
    requests: Callable[[dict], list[dict]] = lambda run: [run]
    prompt: Callable[[dict], list[int]] = itemgetter("prompt_ids")


def check_runs(golden_dir: Path, recording: Recording, most: int | None = None, **further) -> None:
    """Runs with equal settings are decoded in one batch, with prompts of several lengths."""

    @cache
    def load(name, **kwargs):
        return AutoModelForMaskedLM.from_pretrained(golden_dir / name / "model", **kwargs).eval()

    lines = map(json.loads, (golden_dir / f"{recording.path}.jsonl").read_text().splitlines())
    runs = [line | run for line in lines if recording.is_compared(line) for run in recording.requests(line)]
    assert len(runs) == recording.num_runs
    # At an odd distance, since settings take turns.
    step = 1 if most is None else -(-len(runs) // most) | 1
    # The published end tokens are outside the tiny vocabularies.
    common = {"stop_at_eos": False, "eos_token_id": 0}
    pairs = [(run, common | recording.settings(run) | {"model": run["model"]}) for run in runs[::step]]
    for settings, group in with_equal_settings(pairs):
        settings = dict(settings)
        model = load(settings.pop("model"), **settings.pop("loading", {}))
        draws = {"generator_for": lambda row, of=group: torch.Generator().manual_seed(of[row].get("torch_seed", 0))}
        rows = model.generate_many(map(recording.prompt, group), **settings, **draws, **further)
        for run, row in zip(group, rows, strict=True):
            recording.check(run, row)


def up_to(tokens, ends):
    end = next((place for place, token in enumerate(tokens) if token in ends), len(tokens))
    return tokens[: end + 1]


# dParallel, LLaDA and Dream, without a cache.

OFFICIAL_SAMPLERS = ("dparallel.generate", "llada.generate", "dream_semiar.diffusion_generate")


def is_exact(run):
    return run["function"] in OFFICIAL_SAMPLERS and not run["params"].get("cfg_scale")


def exact_settings(run):
    params = run["params"]
    has_steps = params.get("threshold") is None
    rule = {"denoising_steps": params["steps"]} if has_steps else {"entropy_threshold": params["threshold"]}
    return {"max_new_tokens": 64, "block_length": params["block_length"], **rule}


def check_all(run, row):
    assert row.tokens.tolist() == run["generated_ids"] and row.nfe == run["nfe_forward_calls"]


def settings_with_an_end(run):
    """Any token can be the end of text: the one that the official run wrote in the middle makes the stop happen."""
    end = {"stop_at_eos": True, "eos_token_id": run["generated_ids"][20], "pad_token_id": 0}
    return exact_settings(run) | end


def check_to_the_end(run, row):
    expected = up_to(run["generated_ids"], run["generated_ids"][20:21])
    assert row.tokens.tolist() == expected + [0] * (64 - len(expected))
    assert (row.commit_step[len(expected) :] == -1).all() and row.nfe <= run["nfe_forward_calls"]


# dParallel with its caches. Without a threshold they commit by entropy on a schedule, which is none of our rules.

OFFICIAL_CACHES = {"dparallel.generate_with_prefix_cache": "prefix", "dparallel.generate_with_dual_cache": "dual"}


def is_cached(run):
    return run["function"] in OFFICIAL_CACHES and run["params"]["threshold"] is not None


def cached_settings(run):
    return exact_settings(run) | {"cache_implementation": OFFICIAL_CACHES[run["function"]]}


def check_cached(run, row):
    assert row.tokens.tolist() == run["generated_ids"]
    # The official functions run one more pass over a block that the first pass has decided as a whole.
    blocks = row.commit_step.view(-1, run["params"]["block_length"])
    assert row.nfe + (blocks.amin(dim=1) == blocks.amax(dim=1)).sum() == run["nfe_forward_calls"]


# SDAR and LLaDA2, whose blocks are counted from the first token of the prompt.


def is_greedy(run):
    # Draws are made with torch's own numbers, in another order than ours.
    return run["greedy"] is not None


def sdar_settings(run):
    params, num_tokens = run["params"], len(run["output_ids"])
    block_length, steps, strategy = params["block_length"], params["denoising_steps"], params["remasking_strategy"]
    settings = {"block_length": block_length, "max_new_tokens": num_tokens}
    if strategy == "entropy_bounded":
        return settings | {"entropy_budget": params["eb_threshold"]}
    if strategy == "low_confidence_dynamic":
        threshold = params.get("confidence_threshold", params.get("dynamic_threshold"))
        return settings | {"confidence_threshold": threshold, "min_commits": max(block_length // steps, 1)}
    steps = min(max(round(steps * num_tokens / block_length), -(-num_tokens // block_length)), num_tokens)
    order = "left_to_right" if strategy == "sequential" else "confidence"
    return settings | {"denoising_steps": steps, "commit_order": order}


def sdar_settings_with_processors(run):
    """The published code takes the confidence after these, and ours from what processors return."""
    params = run["params"]
    processors = [TemperatureLogitsWarper(params["temperature"])] if params["temperature"] != 1 else []
    if params["top_k"]:
        processors.append(TopKLogitsWarper(params["top_k"]))
    if params["top_p"] < 1:
        processors.append(TopPLogitsWarper(params["top_p"]))
    stop_ids = params.get("stopping_criteria_idx")
    end = {"stop_at_eos": True, "eos_token_id": stop_ids} if stop_ids is not None else {}
    return sdar_settings(run) | end | ({"logits_processor": LogitsProcessorList(processors)} if processors else {})


def check_sdar(run, row):
    """Our passes are the denoising calls: no call only stores a block, and none only reads the prompt."""
    stop_ids, tokens, expected = run["params"].get("stopping_criteria_idx"), row.tokens.tolist(), run["output_ids"]
    if stop_ids is not None:
        # Published code decodes the block with the end token to its end.
        assert up_to(tokens, stop_ids) == up_to(expected, stop_ids) and row.nfe <= run["calls_denoise"]
        return
    assert tokens == expected and row.nfe == run["calls_denoise"]
    assert row.nfe == run["calls_total"] - run["calls_store"] - run["calls_prefill"]
    assert steps_in_block(row, run, run["params"]["block_length"]) == run["unmask_step"]


def check_engine(run, row):
    assert row.tokens.tolist() == run["output_ids"]
    assert (row.commit_step + 1).tolist() == run["first_unmask_steps"]
    # Passes that would decide tokens after the answer only are saved.
    assert row.nfe == max(run["first_unmask_steps"]) <= run["calls_denoise"]


# A2D: with full attention, and block-causal with blocks that end where the prompt ends.


def is_exact_mdlm(run):
    return run["function"] == "dllm.MDLMSampler" and not run["params"].get("cfg_scale")


def is_exact_bd3lm(run):
    return run["function"] == "dllm.BD3LMSampler" and not run["params"].get("right_shift_logits")


def a2d_settings(run):
    params, length = run["params"], run.get("max_new_tokens", run["params"]["max_new_tokens"])
    settings = {"max_new_tokens": length, "block_length": params["block_size"], "mask_token_id": 250}
    settings |= {"suppress_tokens": params.get("suppress_tokens", [])}
    loading = {"shift_logits": params.get("right_shift_logits", False)}
    if run["function"] == "dllm.MDLMSampler":
        return settings | {"denoising_steps": params["steps"], "loading": loading}
    steps = -(-length // params["block_size"]) * min(params["steps_per_block"], length)
    loading["block_length"] = params["block_size"]
    return settings | {"denoising_steps": steps, "block_origin": "answer", "loading": loading}


def in_even_parts(run):
    """A shorter last block has as many passes as the others, and is decoded by itself, after them.

    An answer ends with the block of an end token. A decoded padding token is hidden from the blocks after its own,
    which is a fault of the published code: they are compared with nothing.
    """
    params, prompt, tokens = run["params"], run["prompt_ids"], run["generated_ids"]
    length = params["block_size"]
    if 243 in tokens:
        tokens = tokens[: (tokens.index(243) // length + 1) * length]
    whole = max(params["max_new_tokens"] // length * length, length)
    parts = [{"prompt_ids": prompt, "generated_ids": tokens[:whole], "max_new_tokens": whole}]
    if whole < len(tokens):
        rest = params["max_new_tokens"] - whole
        parts += [{"prompt_ids": prompt + tokens[:whole], "generated_ids": tokens[whole:], "max_new_tokens": rest}]
    return parts


def check_beginning(run, row):
    expected = run["generated_ids"]
    assert row.tokens.tolist()[: len(expected)] == expected


def by_function(name):
    return lambda run: run["function"] == name


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


def whole_blocks(run, block_length):
    """The published code decodes whole blocks, and cuts the answer at the end token afterwards."""
    num_prompt = len(run["prompt_ids"])
    num_blocks = -(-(num_prompt + run["params"]["gen_length"]) // block_length)
    return {"block_length": block_length, "max_new_tokens": num_blocks * block_length - num_prompt}


def llada2_settings(run):
    params = run["params"]
    block_length, num_steps = params["block_length"], params["gen_length"] // params["minimal_topk"]
    has_ended = params["eos_id"] in run["output_ids"]
    return whole_blocks(run, block_length) | {
        "mask_token_id": params["mask_id"],
        "confidence_threshold": params["threshold"],
        "min_commits": block_length // min(params["steps"], num_steps),
        **({"stop_at_eos": True, "eos_token_id": params["eos_id"]} if has_ended else {}),
    }


def check_llada2(run, row):
    num_tokens = len(run["output_ids"])
    assert row.tokens.tolist()[:num_tokens] == run["output_ids"]
    if run["params"]["eos_id"] in run["output_ids"]:
        assert row.nfe <= run["nfe"]
    else:
        assert row.nfe == run["nfe"]
        assert steps_in_block(row, run, run["params"]["block_length"])[:num_tokens] == run["unmask_step"]


# Fast-dLLM v2 (https://huggingface.co/papers/2509.26328), whose logits are shifted, also across blocks.


def has_no_sub_blocks(run):
    return run["params"]["small_block_size"] == run["params"]["block_size"]


def fast_dllm_settings(run):
    params = run["params"]
    block_length, threshold = params["block_size"], params["threshold"]
    # The published code writes one token of the block after the answer, too.
    lengths = {"max_new_tokens": params["max_new_tokens"] - len(run["prompt_ids"]) % block_length + 1}
    rule = {"confidence_threshold": threshold} if threshold < 1 else {}
    end = {"stop_at_eos": True, "eos_token_id": 241, "mask_token_id": 250}
    return lengths | {"block_length": block_length} | rule | end


def check_fast_dllm(run, row):
    expected, num_prompt, block_length = run["generated_ids"], len(run["prompt_ids"]), run["params"]["block_size"]
    assert row.tokens[: row.num_tokens].tolist() == expected
    # The call that stores a block decides the first token of the next one. What a prompt has before its last block is
    # stored by one more.
    num_calls = run["nfe_forward_calls"] - (num_prompt > block_length and num_prompt % block_length > 0)
    assert row.nfe <= num_calls if expected[-1] == 241 else row.nfe == num_calls


# Editing (LLaDA2.1, https://huggingface.co/papers/2602.08676).


def editing_settings(run):
    params = run["params"]
    block_length = params.get("block_length", params.get("block_size"))
    length = whole_blocks(run, block_length) if "gen_length" in params else {"max_new_tokens": len(run["output_ids"])}
    return length | {
        "block_length": block_length,
        "confidence_threshold": params["threshold"],
        "min_commits": params["num_to_transfer"],
        "editing_threshold": params["editing_threshold"],
        "max_post_steps": params["max_post_steps"],
        "mask_token_id": params.get("mask_id", 249),
        "eos_token_id": params.get("eos_id", 244),
    }


def check_editing(run, row):
    params, expected = run["params"], run["output_ids"]
    assert row.tokens.tolist()[: len(expected)] == expected
    has_ended_early = params.get("eos_early_stop") and params["eos_id"] in expected
    assert row.nfe >= run["nfe"] if has_ended_early else row.nfe == run["nfe"]
    # Edits of the last pass behind the end of the answer are not in the record.
    assert has_ended_early or row.num_revisions >= run["num_edits_seen"]


# Soft decoding (DMax, https://huggingface.co/papers/2604.08302).


def has_one_token(run):
    """Mixtures of one token with the mask token: not the ten runs with two, which no published caller asks for.

    In no run a block was left with masks, as the published rules do above 0.9.
    """
    return run["params"]["top_k"] == 1


def soft_settings(run):
    # The published code decodes whole blocks.
    lengths = {"block_length": run["params"]["block_length"], "max_new_tokens": len(run["output_ids"])}
    end = {"stop_at_eos": True, "eos_token_id": 244}
    return lengths | end | {"soft_threshold": run["params"]["threshold"], "mask_token_id": 249}


def check_soft(run, row):
    assert row.tokens.tolist() == run["output_ids"]
    # The prompt is stored with the first pass here, and by a call of its own there.
    assert row.nfe == run["decode_calls"] == run["nfe_reported"] - 1


# Verified commits (WINO, https://huggingface.co/papers/2507.18578), several blocks at once (d3LLM,
# https://huggingface.co/papers/2601.07568: all but its end of an answer and its cache), and KLASS.


def verified_settings(run):
    params = run["params"]
    return {
        "max_new_tokens": params["gen_length"],
        "block_length": params["block_length"],
        "capped_confidence": params["threshold"],
        "revocation_threshold": params["threshold_back"],
    }


def check_verified(run, row):
    check_all(run, row)
    assert row.num_revisions == run["num_remasked"]


def several_blocks(run):
    params = run["params"]
    return {
        "max_new_tokens": params["max_new_tokens"],
        "block_length": params["block_size"],
        "max_active_blocks": params["max_new_tokens"] // params["block_size"],
        "block_add_threshold": params["block_add_threshold"],
        "entropy_threshold": params["threshold"],
        "mask_token_id": params["mask_id"],
    }


def has_one_block(run):
    """With more blocks the published code carries the history over, for which it scores the whole canvas."""
    return run["params"]["block_length"] == run["params"]["steps"] == 64


def klass_settings(run):
    params = run["params"]
    rule = {"kl_threshold": params["kl_threshold"], "kl_confidence": params["conf_threshold"]}
    return rule | {"kl_history_length": params["kl_history_length"], "max_new_tokens": 64, "block_length": 64}


# LLaDA-MoE, with the sampler of dllm. Guidance, and logits that are shifted for one run, are none of our settings.


def says_all(run):
    return run["function"] == "dllm.MDLMSampler" and not {"cfg_scale", "right_shift_logits"} & run["params"].keys()


def mdlm_settings(run):
    params, num_tokens = run["params"], run["params"]["max_new_tokens"]
    lengths = {"max_new_tokens": num_tokens, "block_length": min(params["block_size"], num_tokens)}
    suppressed = {"suppress_tokens": params.get("suppress_tokens", [])}
    return lengths | suppressed | {"denoising_steps": params["steps"], "mask_token_id": 250}


# RND1, whose sampler fills in the masks before an end token. By entropy a setting commits one token in each pass; how
# many more is a rule of this test. With its `eb_gamma` it adds entropies up in the order of the probabilities.


def has_schedule(run):
    return run["params"]["eb_gamma"] is None


def masks_before_the_end(run):
    num_masks = run["params"]["seq_len"] - len(run["prompt_ids"]) - 1
    return [*run["prompt_ids"], *[250] * num_masks, run["generated_ids"][-1]]


def rnd1_settings(run):
    num_masks, steps = len(run["generated_ids"]) - 1, run["params"]["num_steps"]
    rule = {"entropy_threshold": 0.0} if steps == num_masks else {"lowest_entropies": num_masks // steps}
    return {"max_new_tokens": 0, "block_length": run["params"]["seq_len"], "mask_token_id": 250} | rule


def check_filled_in(run, row):
    assert row.tokens.tolist()[len(run["prompt_ids"]) :] == run["generated_ids"]
    assert row.nfe == run["nfe_forward_calls"]


RECORDINGS = {
    "llada": Recording("llada/generation", 120, exact_settings, check_all, is_exact),
    # With fewer heads of keys models are decoded the same.
    "llada_gqa": Recording("llada_gqa/generation", 120, exact_settings, check_all, is_exact),
    "dream": Recording("dream/generation", 72, exact_settings, check_all, is_exact),
    "llada, end": Recording("llada/generation", 120, settings_with_an_end, check_to_the_end, is_exact),
    "llada_gqa, end": Recording("llada_gqa/generation", 120, settings_with_an_end, check_to_the_end, is_exact),
    "dream, end": Recording("dream/generation", 72, settings_with_an_end, check_to_the_end, is_exact),
    "llada, cache": Recording("llada/generation", 120, cached_settings, check_cached, is_cached),
    "llada_gqa, cache": Recording("llada_gqa/generation", 120, cached_settings, check_cached, is_cached),
    "sdar": Recording("sdar/generation", 229, sdar_settings_with_processors, check_sdar, is_greedy),
    "engine": Recording("sdar/engine", 105, sdar_settings, check_engine),
    "llada2": Recording("llada2/generation", 60, llada2_settings, check_llada2, is_even),
    "mdlm": Recording("a2d/generation", 40, a2d_settings, check_all, is_exact_mdlm),
    # 45 runs, of which 9 have a shorter last block.
    "bd3lm": Recording("a2d/generation", 54, a2d_settings, check_beginning, is_exact_bd3lm, requests=in_even_parts),
    "fast_dllm": Recording("fast_dllm_v2/generation", 53, fast_dllm_settings, check_fast_dllm, has_no_sub_blocks),
    "editing": Recording("llada2/generation", 79, editing_settings, check_editing, by_function("llada21.generate")),
    "soft": Recording("dmax/generation", 50, soft_settings, check_soft, has_one_token),
    "verified": Recording("wino/generation", 87, verified_settings, check_verified),
    "several blocks": Recording("d3llm/generation", 60, several_blocks, check_all),
    "klass": Recording("klass/generation", 16, klass_settings, check_all, has_one_block),
    "llada_moe": Recording("llada_moe/generation", 35, mdlm_settings, check_all, says_all),
    "rnd1": Recording(
        "rnd1/generation", 12, rnd1_settings, check_filled_in, has_schedule, prompt=masks_before_the_end
    ),
}


@pytest.fixture(autouse=True)
def further_rules(klass):
    """The rule of WINO, a confidence threshold with at most so many tokens in a pass; and a number by entropy."""

    def commit_capped(prediction, masked, threshold):
        confident = masked & (prediction.confidence > threshold)
        cap = (0.7 * masked.sum(dim=1)).long().clamp(min=5, max=20)
        return commit_by_count(prediction.confidence, masked, confident.sum(dim=1).clamp(min=1).minimum(cap))

    def commit_lowest(prediction, masked, count):
        return commit_by_count(-prediction.entropy, masked, masked.new_tensor(count, dtype=int).expand(len(masked)))

    with patch.dict(SETTINGS), patch.dict(commit_rules.RULES):
        commit_rule("capped_confidence", float, help="A threshold.", noun="a probability", maximum=1)(commit_capped)
        commit_rule("lowest_entropies", int, help="How many.")(commit_lowest)
        yield


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", [name for name in RECORDINGS if not name.startswith("llada_gqa")])
def test_equals_the_published_sampler(golden_dir, name):
    check_runs(golden_dir, RECORDINGS[name], most=6)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDINGS)
def test_equals_the_published_sampler_in_all_runs(golden_dir, name):
    check_runs(golden_dir, RECORDINGS[name])


def of_cache(name):
    def is_compared(run):
        return is_cached(run) and OFFICIAL_CACHES[run["function"]] == name

    return RECORDINGS["llada, cache"]._replace(num_runs=60, is_compared=is_compared)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "recording",
    [RECORDINGS["llada"], of_cache("prefix"), of_cache("dual"), RECORDINGS["sdar"]],
    ids=["none", "prefix", "dual", "block"],
)
def test_compiled_passes_equal_the_published_sampler(golden_dir, graphs, recording):
    check_runs(golden_dir, recording, most=1, compile_config=graphs.config)
    assert graphs.num_graphs >= 2


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", [name for name in RECORDINGS if name not in ("editing", "soft", "verified")])
def test_compiled_passes_equal_the_published_sampler_in_more_runs(golden_dir, graphs, name):
    check_runs(golden_dir, RECORDINGS[name], most=12, batch_size=1, compile_config=graphs.config)
    assert graphs.num_graphs >= 2
