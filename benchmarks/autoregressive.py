# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""From how many tokens per pass on is a diffusion model faster than an autoregressive one of the same shape?

    python benchmarks/autoregressive.py --output benchmarks/results/autoregressive_small.json
    python benchmarks/autoregressive.py --batch_sizes 1 --prompt_lengths 64 512 2048 --max_new_tokens 256 --passes 32 \
        --output benchmarks/results/block_cache_small.json

A Llama with random weights decodes with transformers' `generate` and its static cache, one token in each pass. LLaDA
and SDAR of the same shape decode as many tokens with each of their caches. What a pass of theirs costs, over what a
token of the Llama costs, is the number of tokens that a pass has to commit to be as fast.

On a CPU, one thread computes and its CPU time is taken, which depends less on what else the machine does. What is
compared is called in turns.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from speed import SHAPES, fixed_recipe, random_model, random_prompts, timed
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from hf_dparallel.environment import describe_environment, device_name
from hf_dparallel.reports import markdown_table, write_json


BLOCK_LENGTH = 32
# By what is added to the name of a shape, for LLaDA and SDAR. "none" computes everything in every pass.
CACHES = {"": ("none", "prefix", "dual"), "-sdar": ("none", "block")}
# Figures of a table by title, with their format.
TABLES = {
    "Seconds per pass": ("seconds_per_pass", ".3f"),
    "Tokens per pass from which it is faster than the Llama": ("tokens_per_pass_to_pay", ".1f"),
    "Tokens/s, over those of the Llama": ("tokens_per_s_ratio", ".2f"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    shapes = [name for name in SHAPES if all(f"{name}{kind}" in SHAPES for kind in CACHES)]
    parser.add_argument("--shape", default="small", choices=shapes)
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--prompt_lengths", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--max_new_tokens", type=int, default=128, help="tokens of an answer, a multiple of 32")
    parser.add_argument("--passes", type=int, default=32, help="passes for an answer, a multiple of its blocks of 32")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=1, help="decodes that are timed; their median counts")
    parser.add_argument("--output", required=True, type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        torch.set_num_threads(1)
    dtype = getattr(torch, arguments.dtype)
    models = {kind: random_model(arguments.shape + kind, dtype, arguments.device) for kind in CACHES}
    llama = random_llama(arguments.shape, dtype, arguments.device)
    rows = []
    for batch_size in arguments.batch_sizes:
        for prompt_length in arguments.prompt_lengths:
            rows += compare(models, llama, batch_size, prompt_length, arguments)
            result = {
                "rows": rows,
                "settings": {name: str(value) for name, value in vars(arguments).items()},
                "num_threads": torch.get_num_threads(),
                "device": device_name(llama.device),
                "environment": describe_environment(),
            }
            write_json(result, arguments.output)
    for title, (name, form) in TABLES.items():
        print(f"\n{title}:\n\n{table(rows, name, form)}")


def random_llama(shape_name: str, dtype: torch.dtype, device: str) -> LlamaForCausalLM:
    """Makes a Llama of the shape, without EOS."""
    shape = SHAPES[shape_name]
    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        intermediate_size=shape.intermediate_size,
        max_position_embeddings=shape.max_position_embeddings,
        eos_token_id=None,
        pad_token_id=0,
    )
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def compare(
    models: dict[str, PreTrainedModel],
    llama: LlamaForCausalLM,
    batch_size: int,
    prompt_length: int,
    arguments: argparse.Namespace,
) -> list[dict[str, Any]]:
    """Times all models on prompts of one length; a row for each model and cache."""
    num_tokens, device = arguments.max_new_tokens, llama.device
    prompts = random_prompts(llama, batch_size, prompt_length)
    calls = {"llama": llama_decoding(llama, prompts, num_tokens)}
    passes = {}
    for kind, cache in ((kind, cache) for kind, caches in CACHES.items() for cache in caches):
        config = fixed_recipe(models[kind], num_tokens, BLOCK_LENGTH, None if cache == "none" else cache)
        # Where everything is computed all passes cost the same, so that one in each block does.
        passes[kind, cache] = num_tokens // BLOCK_LENGTH if cache == "none" else arguments.passes
        config = config.updated(denoising_steps=passes[kind, cache])
        calls[kind, cache] = partial(models[kind].generate, prompts, config)
    seconds = seconds_of(calls, arguments.repeats, device)
    rows = []
    for (kind, cache), count in passes.items():
        row = {
            "batch_size": batch_size,
            "prompt_length": prompt_length,
            "model": models[kind].config.model_type,
            "cache": cache,
            "seconds_per_pass": seconds[kind, cache] / count,
            "llama_seconds_per_token": seconds["llama"] / num_tokens,
        }
        row["tokens_per_pass_to_pay"] = row["seconds_per_pass"] / row["llama_seconds_per_token"]
        tokens_per_s = num_tokens / arguments.passes / row["seconds_per_pass"]
        row["tokens_per_s_ratio"] = tokens_per_s * row["llama_seconds_per_token"]
        rows.append(row)
        print(row, flush=True)
    return rows


def llama_decoding(llama: LlamaForCausalLM, prompts: torch.LongTensor, num_tokens: int) -> Callable[[], Any]:
    """Returns `generate` with a static cache, compiled on a GPU."""
    return partial(
        llama.generate,
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=num_tokens,
        do_sample=False,
        cache_implementation="static",
    )


def seconds_of(calls: dict[Any, Callable[[], Any]], repeats: int, device: torch.device) -> dict[Any, float]:
    """Returns the median time of each call, made in turns."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    for function in calls.values():
        function()  # compiles
    seconds: dict[Any, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, function in calls.items():
            seconds[name].append(timed(function, device.type, clock))
    return {name: statistics.median(times) for name, times in seconds.items()}


def table(rows: list[dict[str, Any]], name: str, form: str) -> str:
    """Tabulates one figure, a column for each model and cache."""
    numbers: dict[tuple[int, int], dict[str, str]] = {}
    for row in rows:
        of_prompts = numbers.setdefault((row["batch_size"], row["prompt_length"]), {})
        of_prompts[f"{row['model']}, {row['cache']}"] = format(row[name], form)
    columns = list(dict.fromkeys(f"{row['model']}, {row['cache']}" for row in rows))
    lines = [[*shape, *(of_prompts[column] for column in columns)] for shape, of_prompts in numbers.items()]
    return markdown_table(["Batch", "Prompt", *columns], lines, num_text_columns=0)


if __name__ == "__main__":
    main()
