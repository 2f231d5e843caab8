# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Everything there is to measure on a GPU, in stages, for as long as there is one.

    python benchmarks/gpu.py --output_dir gpu_results --seconds 500          # the stages that are missing there
    python benchmarks/gpu.py --output_dir gpu_results --quick                # the first shape alone, in three minutes
    python benchmarks/gpu.py --output_dir gpu_results --stages 'decode-*'    # some of them
    python benchmarks/gpu.py --output_dir gpu_results --table > gpu.md       # tables of what is there

Needs torch, transformers and peft. Each row is written as soon as it is measured, errors included, and the next run
goes on from there. To measure a stage again, delete its file.

The weights are random, and the models decode on a fixed schedule in as many passes as the paper took on GSM8K.
"""

import fnmatch
import functools
import gc
import json
import math
import os
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import torch
import train
from speed import SHAPES, measure_decoding, measure_machine, random_model, random_prompts, timed
from transformers import AutoModelForCausalLM, HfArgumentParser, LlamaConfig, PreTrainedModel

from hf_dparallel.environment import describe_environment, device_name
from hf_dparallel.reports import markdown_table, write_json


# Passes for 256 tokens: dParallel's on GSM8K (tables 1 and 2 of https://arxiv.org/abs/2509.26488).
PASSES = {"llada-8b": 30, "dream-7b": 39}
BLOCK_LENGTH = 32
CACHES = {"llada": ("none", "prefix", "dual"), "Dream": ("none", "prefix", "dual"), "sdar": ("none", "block")}
# By title, the figure and its form.
DECODING_COLUMNS = {
    "Passes": ("passes", "d"),
    "ms/pass": ("ms_per_pass", ".2f"),
    "Tokens/s": ("tokens_per_s", ".0f"),
    "Part of floor": ("part_of_floor", ".0%"),
    "Launches/pass": ("launches", ".0f"),
    "Waits/pass": ("waits", ".1f"),
    "Busy": ("busy", ".0%"),
    "Memory, MB": ("peak_memory_mb", ".0f"),
}
TRAINING_COLUMNS = {
    "Seconds": ("seconds", ".2f"),
    "Weights, MB": ("weights_mb", ".0f"),
    "Tensors, MB": ("tensors_mb", ".0f"),
}

# Settings of a measurement, and the function that measures.
Measurements = Iterator[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]


@dataclass
class KitArguments:
    """What is measured."""

    output_dir: str = field(metadata={"help": "Folder for a JSON file of each stage."})
    stages: str = field(default="*", metadata={"help": "Pattern of the stages to run."})
    table: bool = field(default=False, metadata={"help": "Print tables of what is there, and measure nothing."})
    shapes: list[str] = field(
        default_factory=lambda: ["llada-8b", "dream-7b", "sdar-8b"], metadata={"help": "Model shapes."}
    )
    batch_sizes: list[int] = field(default_factory=lambda: [1, 8, 32], metadata={"help": "Prompts decoded together."})
    prompt_lengths: list[int] = field(default_factory=lambda: [64, 2048], metadata={"help": "Tokens of a prompt."})
    max_new_tokens: int = field(default=256, metadata={"help": "Tokens of an answer."})
    repeats: int = field(default=3, metadata={"help": "Calls that are timed; their median counts."})
    seconds: float = field(default=math.inf, metadata={"help": "Start nothing after so many."})
    quick: bool = field(
        default=False, metadata={"help": "The first shape, batch size and prompt length, timed once, in 150 seconds."}
    )
    device: str = field(default="cuda", metadata={"help": "cuda, or cpu to try it."})
    dtype: str = field(default="bfloat16", metadata={"help": "Of the weights."})

    def __post_init__(self):
        if self.quick:
            self.shapes, self.batch_sizes, self.prompt_lengths = (
                values[:1] for values in (self.shapes, self.batch_sizes, self.prompt_lengths)
            )
            self.repeats, self.seconds = 1, min(self.seconds, 150.0)

    def passes(self, shape: str) -> int:
        """Returns the forward passes for an answer, in proportion to its length."""
        return PASSES.get(shape, PASSES["llada-8b"]) * self.max_new_tokens // 256


def stages(arguments: KitArguments) -> dict[str, Callable[[], Measurements]]:
    """Returns the stages by name, the most wanted first."""
    kinds = {
        "decode": decoding,
        "autoregressive": llama_decoding,
        "train": training,
        "compiled": functools.partial(decoding, compiled=True),
    }
    found = {
        f"{kind}-{shape}": functools.partial(measure, arguments, shape)
        for kind, measure in kinds.items()
        for shape in arguments.shapes
    }
    return {name: stage for name, stage in found.items() if fnmatch.fnmatch(name, arguments.stages)}


def decoding(arguments: KitArguments, shape: str, compiled: bool = False) -> Measurements:
    """Times decoding beside the least time that reading the weights and multiplying with them takes."""
    dtype = getattr(torch, arguments.dtype)
    model, machine = random_model(shape, dtype, arguments.device), measure_machine(dtype, arguments.device)

    def run(prompt_length: int, batch_size: int, cache: str) -> dict[str, Any]:
        figures = measure_decoding(
            model,
            machine,
            batch_size=batch_size,
            prompt_length=prompt_length,
            max_new_tokens=arguments.max_new_tokens,
            block_length=BLOCK_LENGTH,
            passes=arguments.passes(shape),
            cache=None if cache == "none" else cache,
            repeats=arguments.repeats,
            compiled=compiled,
            profiled=True,
        )
        return figures | vars(machine)

    caches = ("none",) if compiled else CACHES[SHAPES[shape].model_type]
    every = product(arguments.prompt_lengths, arguments.batch_sizes, caches)
    for prompt_length, batch_size, cache in every:
        of = {"prompt_length": prompt_length, "batch_size": batch_size, "cache": cache}
        yield {"shape": shape, "compiled": compiled} | of, functools.partial(run, **of)


def llama_decoding(arguments: KitArguments, shape: str) -> Measurements:
    """Times a Llama of the shape, which transformers compiles, with a static cache."""
    llama = random_llama(shape, getattr(torch, arguments.dtype), arguments.device)

    def run(prompt_length: int, batch_size: int) -> dict[str, Any]:
        # Kernels compiled for other shapes would make later ones compile for any shape.
        torch.compiler.reset()
        prompts = random_prompts(llama, batch_size, prompt_length)
        mask = torch.ones_like(prompts)
        settings = {"max_new_tokens": arguments.max_new_tokens, "do_sample": False, "cache_implementation": "static"}
        decode = functools.partial(llama.generate, prompts, attention_mask=mask, **settings)
        decode()  # compiles
        seconds = statistics.median(timed(decode, arguments.device) for _ in range(arguments.repeats))
        return {"ms_per_token": 1000 * seconds / arguments.max_new_tokens}

    for prompt_length, batch_size in product(arguments.prompt_lengths, arguments.batch_sizes):
        of = {"prompt_length": prompt_length, "batch_size": batch_size}
        yield {"shape": shape} | of, functools.partial(run, **of)


def random_llama(shape_name: str, dtype: torch.dtype, device: str) -> PreTrainedModel:
    """Makes a Llama of the shape, without EOS."""
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    names += ("intermediate_size", "max_position_embeddings")
    shape = {name: getattr(SHAPES[shape_name], name) for name in names}
    with torch.device(device):
        config = LlamaConfig(**shape, eos_token_id=None, pad_token_id=0)
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def training(arguments: KitArguments, shape: str) -> Measurements:
    """Times loss and backward pass with LoRA, on two sequences of the paper's length."""
    settings = train.TrainingSpeedArguments(
        shape=shape,
        dtype=arguments.dtype,
        device=arguments.device,
        repeats=arguments.repeats,
        max_length=arguments.prompt_lengths[0] + arguments.max_new_tokens,
        prompt_length=arguments.prompt_lengths[0],
    )
    with tempfile.TemporaryDirectory() as folder:
        for of, run in train.measurements(settings, folder):
            yield {"shape": shape, **of}, run


def run_stage(name: str, measurements: Callable[[], Measurements], folder: Path, end: float) -> None:
    """Writes the rows of a stage, each as soon as it is measured, after those that an earlier run left behind."""
    path = folder / f"{name}.json"
    device = device_name(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    result = {"stage": name, "rows": [], "device": device, "environment": describe_environment(), "is_complete": False}
    if path.exists():
        result = json.loads(path.read_text())
    if result["is_complete"]:
        return
    for of, run in measurements():
        if any(of.items() <= row.items() for row in result["rows"]):
            continue
        if time.monotonic() >= end:
            return
        try:
            row = of | run()
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            row = of | {"error": f"{type(error).__name__}: {error}"}
        result["rows"].append(row)
        write(result, path)
    write(result | {"is_complete": True}, path)


def write(result: dict[str, Any], path: Path) -> None:
    """Writes all of a file or nothing, whenever the process is ended."""
    write_json(result, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def key_of(row: Mapping[str, Any]) -> tuple[str, int, int]:
    """Returns the settings that rows of both kinds of models share."""
    return row["shape"], row["prompt_length"], row["batch_size"]


def tables(folder: Path) -> str:
    """Writes a folder's figures as Markdown, and what could not be measured."""
    results = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    if not results:
        raise SystemExit(f"There are no results in {folder}.")
    rows = [{"stage": result["stage"], **row} for result in results for row in result["rows"]]
    measured = [row for row in rows if "error" not in row]
    of_llama = {key_of(row): row["ms_per_token"] for row in measured if "ms_per_token" in row}
    decoded = [row for row in measured if "part_of_floor" in row]
    trained = [row for row in measured if "tensors_mb" in row]
    environment = results[0]["environment"]
    parts = [f"{results[0]['device']}, torch {environment['torch']}, transformers {environment['transformers']}"]
    if decoded:
        machine = decoded[0]
        parts[0] += f": reads {machine['bandwidth'] / 1e9:.0f} GB/s, computes {machine['flops'] / 1e12:.0f} TFLOP/s"
        for row in decoded:
            row["pays_from"] = row["ms_per_pass"] / of_llama.get(key_of(row), float("nan"))
        columns = DECODING_COLUMNS | {"Faster than a Llama from, tokens/pass": ("pays_from", ".1f")}
        parts.append(table(decoded, ["shape", "cache", "compiled", "prompt_length", "batch_size"], columns))
    if of_llama:
        llamas = [row for row in measured if "ms_per_token" in row]
        parts.append(
            table(llamas, ["shape", "prompt_length", "batch_size"], {"Llama, ms/token": ("ms_per_token", ".2f")})
        )
    if trained:
        parts.append(table(trained, ["shape", "activation_checkpointing"], TRAINING_COLUMNS))
    parts += [f"Not measured: {row}" for row in rows if "error" in row]
    return "\n\n".join(parts)


def table(rows: list[dict[str, Any]], settings: list[str], columns: Mapping[str, tuple[str, str]]) -> str:
    """Tabulates settings and figures of rows."""
    lines = [
        [*(row[name] for name in settings), *(format(row[name], form) for name, form in columns.values())]
        for row in rows
    ]
    return markdown_table([*settings, *columns], lines, num_text_columns=2)


def main() -> None:
    (arguments,) = HfArgumentParser(KitArguments).parse_args_into_dataclasses()
    folder = Path(arguments.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.table:
        print(tables(folder))
        return
    end = time.monotonic() + arguments.seconds
    # The next run finds the compiled kernels, too.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str((folder / "compiled").resolve()))
    for name, measurements in stages(arguments).items():
        if time.monotonic() >= end:
            break
        print(f"== {name}", flush=True)
        # The model and the compiled code of the last stage must not weigh on this one.
        gc.collect()
        torch.cuda.empty_cache()
        torch.compiler.reset()
        try:
            run_stage(name, measurements, folder, end)
        except Exception:  # noqa: BLE001
            # A model that cannot be made must not cost the other stages the device; its stage stays incomplete.
            traceback.print_exc()


if __name__ == "__main__":
    main()
