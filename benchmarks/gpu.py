# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Everything there is to measure on a GPU, in stages, for as long as there is one.

    python benchmarks/gpu.py --output_dir gpu_results --seconds 500          # the stages that are missing there
    python benchmarks/gpu.py --output_dir gpu_results --stages 'decode-*'    # some of them
    python benchmarks/gpu.py --output_dir gpu_results --table > gpu.md       # tables of what is there

Needs torch, transformers and peft; bitsandbytes for `train-*-4bit`, pytest for `tests`, and checkouts for
`official-*`. Each stage is a process of its own, so that memory and compiled code of one do not weigh on the next. It
writes each row as soon as it is measured, errors included, and the next run goes on from there. To measure a stage
again, delete its file.

The weights are random, and the models decode on a fixed schedule in as many passes as the paper took on GSM8K.
"""

import contextlib
import fnmatch
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import autoregressive
import decode
import torch
import train
from speed import SHAPES, measure_decoding, measure_machine, random_model, random_prompts
from transformers import HfArgumentParser
from transformers.utils import is_bitsandbytes_available

from hf_dparallel.environment import describe_environment, device_name
from hf_dparallel.reports import markdown_table, write_json


GPU_TESTS = Path(__file__).parents[1] / "tests" / "device" / "test_gpu.py"
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
    seconds: float = field(default=86400, metadata={"help": "When to end, whatever is under way."})
    device: str = field(default="cuda", metadata={"help": "cuda, or cpu to try it."})
    dtype: str = field(default="bfloat16", metadata={"help": "Of the weights."})
    against: str | None = field(default=None, metadata={"help": "A checkout of the official dParallel repository."})
    against_python: str = field(default=sys.executable, metadata={"help": "Python of an environment that runs it."})
    in_this_process: bool = field(default=False, metadata={"help": "As each stage is started."})

    def passes(self, shape: str) -> int:
        """Returns the forward passes for an answer, in proportion to its length."""
        return PASSES.get(shape, PASSES["llada-8b"]) * self.max_new_tokens // 256


def stages(arguments: KitArguments) -> dict[str, Callable[[], Measurements]]:
    """Returns the stages by name, the most wanted first."""
    stage, shapes = functools.partial, arguments.shapes
    found = {f"decode-{shape}": stage(decoding, arguments, shape) for shape in shapes}
    found |= {f"autoregressive-{shape}": stage(llama_decoding, arguments, shape) for shape in shapes}
    found |= {f"compiled-{shape}": stage(decoding, arguments, shape, "compiled") for shape in shapes}
    found |= {f"train-{shape}": stage(training, arguments, shape) for shape in shapes}
    found |= {f"ragged-{shape}": stage(decoding, arguments, shape, "ragged") for shape in shapes}
    if is_bitsandbytes_available():
        found |= {f"train-{shape}-4bit": stage(training, arguments, shape, load_in_4bit=True) for shape in shapes}
    if arguments.against is not None:
        published = [shape for shape in shapes if SHAPES[shape].model_type in decode.OFFICIAL_FUNCTIONS]
        found |= {f"official-{shape}": stage(official_decoding, arguments, shape) for shape in published}
    found |= {"tests": run_tests}
    return {name: stage for name, stage in found.items() if fnmatch.fnmatch(name, arguments.stages)}


def run_tests() -> Measurements:
    """Runs the tests that need a GPU."""

    def run() -> dict[str, Any]:
        # Without the repository's own options, some of which need plugins.
        command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-m", "gpu", "-q", str(GPU_TESTS)]
        result = subprocess.run(command, capture_output=True, text=True, cwd=GPU_TESTS.parents[2])
        return {"exit_code": result.returncode, "output": (result.stdout + result.stderr)[-4000:]}

    yield {}, run


def decoding(arguments: KitArguments, shape: str, variant: str = "plain") -> Measurements:
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
            compiled=variant == "compiled",
            ragged=variant == "ragged",
            profiled=True,
        )
        return figures | vars(machine)

    every = product(arguments.prompt_lengths, arguments.batch_sizes, CACHES[SHAPES[shape].model_type])
    for prompt_length, batch_size, cache in every:
        of = {"prompt_length": prompt_length, "batch_size": batch_size, "cache": cache}
        yield {"shape": shape, "variant": variant} | of, functools.partial(run, **of)


def llama_decoding(arguments: KitArguments, shape: str) -> Measurements:
    """Times a Llama of the shape, which transformers compiles, with a static cache."""
    llama = autoregressive.random_llama(shape, getattr(torch, arguments.dtype), arguments.device)

    def run(prompt_length: int, batch_size: int) -> dict[str, Any]:
        # Kernels compiled for other shapes would make later ones compile for any shape.
        torch.compiler.reset()
        prompts = random_prompts(llama, batch_size, prompt_length)
        calls = {"": autoregressive.llama_decoding(llama, prompts, arguments.max_new_tokens)}
        seconds = autoregressive.seconds_of(calls, arguments.repeats, llama.device)[""]
        return {"ms_per_token": 1000 * seconds / arguments.max_new_tokens}

    for prompt_length, batch_size in product(arguments.prompt_lengths, arguments.batch_sizes):
        of = {"prompt_length": prompt_length, "batch_size": batch_size}
        yield {"shape": shape} | of, functools.partial(run, **of)


def training(arguments: KitArguments, shape: str, load_in_4bit: bool = False) -> Measurements:
    """Times loss and backward pass with LoRA, on two sequences of the paper's length."""
    settings = train.TrainingSpeedArguments(
        shape=shape,
        dtype=arguments.dtype,
        device=arguments.device,
        load_in_4bit=load_in_4bit,
        repeats=arguments.repeats,
        max_length=arguments.prompt_lengths[0] + arguments.max_new_tokens,
        prompt_length=arguments.prompt_lengths[0],
        # The official loss is that of LLaDA.
        against=arguments.against if SHAPES[shape].model_type == "llada" else None,
    )
    with tempfile.TemporaryDirectory() as folder:
        for of, run in train.measurements(settings, folder):
            yield {"shape": shape, "load_in_4bit": load_in_4bit, **of}, run


def official_decoding(arguments: KitArguments, shape: str) -> Measurements:
    """Times the official code on the same weights, at an entropy threshold of about as many passes."""
    settings = decode.SpeedArguments(
        shape=shape,
        passes=arguments.passes(shape),
        prompt_length=arguments.prompt_lengths[0],
        max_new_tokens=arguments.max_new_tokens,
        dtype=arguments.dtype,
        device=arguments.device,
        repeats=1,
    )
    yield {"shape": shape}, lambda: decode.compare(settings, arguments.against, arguments.against_python)


def run_stage(name: str, measurements: Measurements, folder: Path) -> None:
    """Writes the rows of a stage, each as soon as it is measured, after those that an earlier run left behind."""
    path = folder / f"{name}.json"
    device = device_name(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    result = {"stage": name, "rows": [], "device": device, "environment": describe_environment(), "is_complete": False}
    if path.exists():
        result = json.loads(path.read_text())
    for of, run in measurements:
        if any(of.items() <= row.items() for row in result["rows"]):
            continue
        try:
            row = of | run()
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            row = of | {"error": f"{type(error).__name__}: {error}"}
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        result["rows"].append(row)
        write(result, path)
    write(result | {"is_complete": True}, path)


def write(result: dict[str, Any], path: Path) -> None:
    """Writes all of a file or nothing, whenever the process is ended."""
    write_json(result, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def run_in_a_process(name: str, seconds: float) -> None:
    """Runs a stage, and ends it with all that it has started when the time is over."""
    process = subprocess.Popen(
        [sys.executable, __file__, *sys.argv[1:], "--stages", name, "--in_this_process"], process_group=0
    )
    try:
        print(f"{name} ended with exit code {process.wait(seconds)}", flush=True)
    except subprocess.TimeoutExpired:
        print(f"{name} was stopped: the time is over", flush=True)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def is_complete(path: Path) -> bool:
    """Tells whether a stage has measured all its rows."""
    return path.exists() and json.loads(path.read_text())["is_complete"]


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
        parts.append(table(decoded, ["shape", "cache", "variant", "prompt_length", "batch_size"], columns))
    if of_llama:
        header = ["Llama of the shape", "Prompt", "Batch", "ms/token"]
        parts.append(markdown_table(header, [[*key, f"{ms:.2f}"] for key, ms in of_llama.items()]))
    if trained:
        parts.append(table(trained, ["shape", "load_in_4bit", "code", "activation_checkpointing"], TRAINING_COLUMNS))
    for comparison in measured:
        if "threshold" in comparison:
            both = [
                {"cache": row["cache"], "code": code, "same_tokens": row["same_tokens"], **row[code]}
                for row in comparison["rows"]
                for code in ("official", "ours")
            ]
            columns = {"Passes": ("nfe", "d"), "Seconds": ("seconds", ".2f"), "Memory, MB": ("peak_memory_mb", ".0f")}
            parts.append(f"{comparison['shape']}\n\n" + table(both, ["cache", "code", "same_tokens"], columns))
    parts += [f"Tests: {row['output'].strip().splitlines()[-1]}" for row in measured if "exit_code" in row]
    parts += [f"Not measured: {row}" for row in rows if "error" in row]
    return "\n\n".join(parts)


def table(rows: list[dict[str, Any]], settings: list[str], columns: Mapping[str, tuple[str, str]]) -> str:
    """Tabulates settings and figures of rows."""
    lines = [
        [*(row[name] for name in settings), *(format(row[name], form) for name, form in columns.values())]
        for row in rows
    ]
    return markdown_table([*settings, *columns], lines, num_text_columns=3)


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
        if is_complete(folder / f"{name}.json") or time.monotonic() >= end:
            continue
        print(f"== {name}", flush=True)
        if arguments.in_this_process:
            run_stage(name, measurements(), folder)
        else:
            run_in_a_process(name, end - time.monotonic())


if __name__ == "__main__":
    main()
