# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""From how many tokens per pass on is a masked diffusion model faster than an autoregressive one of the same shape?

    python benchmarks/autoregressive.py --output benchmarks/results/autoregressive_small.json

A Llama with random weights decodes with transformers' `generate` and its static cache, one token in each pass. The
LLaDA of the same shape decodes as many tokens with each of our caches. What a pass of ours costs, over what a token of
the Llama costs, is the number of tokens that a pass has to commit to be as fast.

On a CPU, one thread computes and its CPU time is taken, which does not depend on what else the machine does.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from hf_dparallel import LLaDAConfig
from hf_dparallel.environment import describe_environment, device_name
from hf_dparallel.evaluation.benchmark import SHAPES, benchmark_config, random_model, random_prompts
from hf_dparallel.reports import markdown_table, write_json


TOKENS_PER_PASS = 4
CACHES = (None, "prefix", "dual")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    shapes = [name for name, config in SHAPES.items() if isinstance(config, LLaDAConfig)]
    parser.add_argument("--shape", default="small", choices=shapes)
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--prompt_lengths", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--max_new_tokens", type=int, default=128, help="tokens of an answer, a multiple of 32")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=1, help="decodes that are timed; their median counts")
    parser.add_argument("--output", required=True, type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        torch.set_num_threads(1)
    dtype = getattr(torch, arguments.dtype)
    diffusion = random_model(arguments.shape, dtype, arguments.device)
    llama = random_llama(arguments.shape, dtype, arguments.device)
    rows = []
    for batch_size in arguments.batch_sizes:
        for prompt_length in arguments.prompt_lengths:
            rows += compare(diffusion, llama, batch_size, prompt_length, arguments.max_new_tokens, arguments.repeats)
            result = {
                "rows": rows,
                "settings": {name: str(value) for name, value in vars(arguments).items()},
                "num_threads": torch.get_num_threads(),
                "device": device_name(diffusion.device),
                "environment": describe_environment(),
            }
            write_json(result, arguments.output)
    print(table(rows))


def random_llama(shape_name: str, dtype: torch.dtype, device: str) -> LlamaForCausalLM:
    """A Llama of the shape, which no token ends."""
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
    diffusion: PreTrainedModel,
    llama: LlamaForCausalLM,
    batch_size: int,
    prompt_length: int,
    num_tokens: int,
    repeats: int,
) -> list[dict[str, Any]]:
    """Times both models on prompts of one length; a row for each cache."""
    prompts = random_prompts(diffusion, batch_size, prompt_length)
    llama_seconds = time_llama(llama, prompts, num_tokens, repeats)
    rows = []
    for cache in CACHES:
        config = benchmark_config(diffusion, num_tokens, 32, cache)
        # Without a cache all passes cost the same, so that one in each block does.
        passes = num_tokens // 32 if cache is None else num_tokens // TOKENS_PER_PASS
        config = config.updated(denoising_steps=passes)
        seconds = seconds_of(lambda config=config: diffusion.generate(prompts, config), repeats, diffusion.device)
        row = {
            "batch_size": batch_size,
            "prompt_length": prompt_length,
            "cache": cache or "none",
            "seconds_per_pass": seconds / passes,
            "llama_seconds_per_token": llama_seconds / num_tokens,
        }
        row["tokens_per_pass_to_pay"] = row["seconds_per_pass"] / row["llama_seconds_per_token"]
        rows.append(row)
        print(row, flush=True)
    return rows


def time_llama(llama: LlamaForCausalLM, prompts: torch.LongTensor, num_tokens: int, repeats: int) -> float:
    """Seconds of `generate` with a static cache, which transformers compiles on a GPU."""
    return seconds_of(
        lambda: llama.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=num_tokens,
            do_sample=False,
            cache_implementation="static",
        ),
        repeats,
        llama.device,
    )


def seconds_of(function, repeats: int, device: torch.device) -> float:
    """Median time of a call."""
    if device.type == "cpu":
        return statistics.median(_timed(function, time.process_time) for _ in range(repeats))

    def synchronized_time() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    # Compiles.
    function()
    return statistics.median(_timed(function, synchronized_time) for _ in range(repeats))


def _timed(function, clock) -> float:
    start = clock()
    function()
    return clock() - start


def table(rows: list[dict[str, Any]]) -> str:
    """The tokens per pass from which diffusion is faster, a column for each cache."""
    numbers: dict[tuple[int, int], dict[str, str]] = {}
    for row in rows:
        of_prompts = numbers.setdefault((row["batch_size"], row["prompt_length"]), {})
        of_prompts[row["cache"]] = f"{row['tokens_per_pass_to_pay']:.1f}"
    caches = list(dict.fromkeys(row["cache"] for row in rows))
    header = ["Batch", "Prompt", *(f"Cache: {cache}" for cache in caches)]
    lines = [[*shape, *(of_prompts[cache] for cache in caches)] for shape, of_prompts in numbers.items()]
    return markdown_table(header, lines, num_text_columns=0)


if __name__ == "__main__":
    main()
