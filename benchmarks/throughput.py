# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Throughput of the bundled teacher: batch sizes, and slots that are refilled against batches that run to their end.

    python benchmarks/throughput.py --output benchmarks/results/throughput.json

The lengths vary: each prompt is a problem with the beginning of the teacher's answer, a quarter of it or nearly all.
Both ways decode the same prompts in the same order, in turn, and the median of the ratios counts.
"""

import argparse
import itertools
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from speed import computed_widths
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_dparallel.data.prompts import tokenize_prompts
from hf_dparallel.demo.pipeline import load_teacher, word_problem_dataset
from hf_dparallel.environment import describe_environment
from hf_dparallel.reports import write_json


NUM_PROMPTS = 96
REPEATS = 3
SETTINGS = {"max_new_tokens": 64, "block_length": 8, "entropy_threshold": 0.5}


def varied_prompts(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[list, list]:
    """Returns problems, and the same with a part of the answer, most with nearly all of it."""
    prompts = tokenize_prompts(word_problem_dataset(NUM_PROMPTS, seed=7, split="test"), tokenizer)
    answers = [row.tokens[: row.num_tokens].tolist() for row in model.generate_many(prompts, **SETTINGS)]
    draw = random.Random(0).random
    begun = [
        prompt + answer[: max(int(len(answer) * (1 - draw() ** 3)) - 1, 0)]
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    return prompts, begun


def decode_in_slots(model: PreTrainedModel, prompts: list[list[int]], batch_size: int, **settings) -> dict[str, Any]:
    """Counts seconds, tokens and passes with `generate_many`."""
    with computed_widths(model) as passes:
        start = time.perf_counter()
        rows = list(model.generate_many(prompts, batch_size=batch_size, **SETTINGS, **settings))
        seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "tokens": sum(row.num_tokens for row in rows),
        "passes": len(passes),
        "nfe": [row.nfe for row in rows],
    }


def decode_in_batches(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[list[int]],
    batch_size: int,
    **settings,
) -> dict[str, Any]:
    """Counts seconds, tokens and passes with one `generate` after the other."""
    tokens = 0
    with computed_widths(model) as passes:
        start = time.perf_counter()
        for first in range(0, len(prompts), batch_size):
            batch = tokenizer.pad(
                {"input_ids": prompts[first : first + batch_size]}, padding_side="left", return_tensors="pt"
            )
            out = model.generate(**batch, return_dict_in_generate=True, **SETTINGS, **settings)
            tokens += int((out.commit_step >= 0).sum())
        seconds = time.perf_counter() - start
    return {"seconds": seconds, "tokens": tokens, "passes": len(passes)}


def measure_batch_sizes(model: PreTrainedModel, prompts: list[list[int]]) -> list[dict[str, Any]]:
    """Prints a table of the throughput by batch size, and returns its rows."""
    rows: list[dict[str, Any]] = []
    print("| Batch | Tokens/s | Over batch 1 |\n| ---: | ---: | ---: |")
    for batch_size in (1, 4, 16, 64):
        some = prompts[:16] if batch_size == 1 else prompts
        runs = [decode_in_slots(model, some, batch_size) for _ in range(REPEATS)]
        rate = statistics.median(run["tokens"] / run["seconds"] for run in runs)
        rows.append({"batch_size": batch_size, "tokens_per_s": rate})
        print(f"| {batch_size} | {rate:.0f} | {rate / rows[0]['tokens_per_s']:.2f} |", flush=True)
    return rows


def compare_slots_with_batches(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> list[dict[str, Any]]:
    """Prints a table of both ways by cache and batch size, and returns its rows."""
    rows = []
    print("\n| Cache | Batch | Batches, tokens/s | Slots, tokens/s | Ratio | Passes, batches | Passes, slots |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for cache, batch_size in itertools.product((None, "dual"), (4, 8, 16)):
        settings = {"batch_size": batch_size, "cache_implementation": cache}
        pairs = [
            (
                decode_in_slots(model, prompts, **settings),
                decode_in_batches(model, tokenizer, prompts, **settings),
            )
            for _ in range(REPEATS)
        ]
        slots, batches = ([run["tokens"] / run["seconds"] for run in runs] for runs in zip(*pairs, strict=True))
        row = {
            "cache": cache or "none",
            "batch_size": batch_size,
            "slots_tokens_per_s": statistics.median(slots),
            "batches_tokens_per_s": statistics.median(batches),
            "ratio": statistics.median(slot / batch for slot, batch in zip(slots, batches, strict=True)),
            "slots_passes": pairs[0][0]["passes"],
            "batches_passes": pairs[0][1]["passes"],
        }
        rows.append(row)
        print(
            f"| {row['cache']} | {batch_size} | {row['batches_tokens_per_s']:.0f} | {row['slots_tokens_per_s']:.0f} | "
            f"{row['ratio']:.2f} | {row['batches_passes']} | {row['slots_passes']} |",
            flush=True,
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--teacher", help="folder of the teacher, by default the bundled one")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    model, tokenizer = load_teacher(path=args.teacher)
    whole, begun = varied_prompts(model, tokenizer)
    nfe = decode_in_slots(model, begun, batch_size=16)["nfe"]
    result = {
        "batch_size": measure_batch_sizes(model, whole),
        "slots": compare_slots_with_batches(model, tokenizer, begun),
        "passes": {"mean": statistics.mean(nfe), "min": min(nfe), "max": max(nfe)},
        "dtype": str(model.dtype),
        "num_threads": torch.get_num_threads(),
        "environment": describe_environment(),
    }
    write_json(result, args.output)


if __name__ == "__main__":
    main()
