# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Everything there is to measure on a GPU, in stages, for as long as there is one.

    python benchmarks/gpu.py --output_dir gpu_results --seconds 500          # the stages that are missing there
    python benchmarks/gpu.py --output_dir gpu_results --stages 'decode-*'    # some of them
    python benchmarks/gpu.py --output_dir gpu_results --table > gpu.md       # tables of what is there

Needs torch, transformers and peft; kernels for `kernels-*`, bitsandbytes for `train-*-4bit`, pytest for `tests`, and
checkouts for `official-*`. Each stage is a process of its own, so that memory and compiled code of one do not weigh on
the next, and ends with this one. It writes its JSON file when it is over; what it has measured until then is kept
beside it, and the next run goes on from there. A stage that was stopped three times without a new row is over. What
fails is recorded in its place. To measure a stage again, delete its file.

The weights are random, and the models decode on a fixed schedule in as many passes as the paper took on GSM8K.
`--others` are the figures of another engine: a JSON list of `{"name", "shape", "batch_size", "prompt_length",
"tokens_per_s"}`, which the table has beside ours.
"""

import contextlib
import ctypes
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import autoregressive
import decode
import torch
import train
from speed import (
    SHAPES,
    SpeedArguments,
    measure_decoding,
    measure_machine,
    random_model,
    random_prompts,
)
from transformers import FineGrainedFP8Config, HfArgumentParser
from transformers.utils import is_bitsandbytes_available, is_kernels_available

from hf_dparallel.environment import describe_environment, device_name
from hf_dparallel.reports import markdown_table, write_json


MOST_ATTEMPTS = 3
# An option of Linux: the signal that a process gets when its parent ends.
PR_SET_PDEATHSIG = 1
GPU_TESTS = Path(__file__).parents[1] / "tests" / "device" / "test_gpu.py"
# Passes for 256 tokens: dParallel's on GSM8K (tables 1 and 2 of https://arxiv.org/abs/2509.26488).
PASSES = {"llada-8b": 30, "dream-7b": 39}
BLOCK_LENGTH = 32
CACHES = {"llada": ("none", "prefix", "dual"), "Dream": ("none", "prefix", "dual"), "sdar": ("none", "block")}

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
    others: str | None = field(default=None, metadata={"help": "JSON file with figures of another engine."})
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
    shapes, decode_all = arguments.shapes, functools.partial(decoding, arguments)
    found = {f"decode-{shape}": functools.partial(decode_all, shape) for shape in shapes}
    found |= {f"autoregressive-{shape}": functools.partial(llama_decoding, arguments, shape) for shape in shapes}
    # Each by itself, because compiling takes minutes.
    found |= {
        f"compiled-{shape}-{cache}-{batch_size}": functools.partial(
            decode_all, shape, "compiled", [cache], [batch_size]
        )
        for batch_size, shape in product(arguments.batch_sizes, shapes)
        for cache in caches_of(shape)
    }
    found |= {f"train-{shape}": functools.partial(training, arguments, shape) for shape in shapes}
    variants = ["ragged", "fp8"] + ["kernels"] * is_kernels_available()
    found |= {f"{name}-{shape}": functools.partial(decode_all, shape, name) for name in variants for shape in shapes}
    if is_bitsandbytes_available():
        in_4bit = functools.partial(training, arguments, load_in_4bit=True)
        found |= {f"train-{shape}-4bit": functools.partial(in_4bit, shape) for shape in shapes}
    if arguments.against is not None:
        published = [shape for shape in shapes if SHAPES[shape].model_type in decode.OFFICIAL_FUNCTIONS]
        found |= {f"official-{shape}": functools.partial(official_decoding, arguments, shape) for shape in published}
    found |= {"tests": functools.partial(run_tests, arguments)}
    return {name: stage for name, stage in found.items() if fnmatch.fnmatch(name, arguments.stages)}


def caches_of(shape: str) -> tuple[str, ...]:
    """Returns the caches that a model of the shape can use."""
    return CACHES[SHAPES[shape].model_type]


def run_tests(arguments: KitArguments) -> Measurements:
    """Runs the tests that need a GPU."""

    def run() -> dict[str, Any]:
        # Without the repository's own options, some of which need plugins.
        command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-m", "gpu", "-q", str(GPU_TESTS)]
        result = subprocess.run(
            command, capture_output=True, text=True, cwd=GPU_TESTS.parents[2], preexec_fn=end_with_parent
        )
        return {"exit_code": result.returncode, "output": (result.stdout + result.stderr)[-4000:]}

    yield {}, run


def decoding(
    arguments: KitArguments, shape: str, variant: str = "plain", caches: Any = (), batch_sizes: Any = ()
) -> Measurements:
    """Times decoding beside the least time that reading the weights and multiplying with them takes."""
    dtype = getattr(torch, arguments.dtype)
    model, machine = random_model(shape, dtype, arguments.device), measure_machine(dtype, arguments.device)
    if variant == "kernels":
        model.set_use_kernels(True)
    if variant == "fp8":
        model = train.load_quantized(model, FineGrainedFP8Config())

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
        return figures | vars(machine) | {"clocks": clocks()}

    every = product(arguments.prompt_lengths, batch_sizes or arguments.batch_sizes, caches or caches_of(shape))
    for prompt_length, batch_size, cache in every:
        of = {"prompt_length": prompt_length, "batch_size": batch_size, "cache": cache}
        yield {"shape": shape, "variant": variant} | of, functools.partial(run, **of)


def clocks() -> str | None:
    """Reads clocks, power and heat from the driver, right after a measurement."""
    query = "--query-gpu=clocks.sm,clocks.max.sm,clocks.mem,power.draw,temperature.gpu"
    with contextlib.suppress(OSError):
        command = ["nvidia-smi", query, "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return None


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
    """Loss and backward pass with LoRA, on two sequences of the paper's length."""
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
    settings = SpeedArguments(
        shape=shape,
        passes=[arguments.passes(shape)],
        prompt_length=arguments.prompt_lengths[0],
        max_new_tokens=arguments.max_new_tokens,
        dtype=arguments.dtype,
        device=arguments.device,
        repeats=1,
    )
    yield {"shape": shape}, lambda: decode.compare(settings, arguments.against, arguments.against_python)


def run_here(name: str, measurements: Measurements, folder: Path) -> None:
    """Writes the rows of a stage, each as soon as it is measured, after those that an earlier run left behind."""
    result = read_unfinished(name, folder)
    with recorded_error(result):
        for of, run in measurements:
            if not any(of.items() <= row.items() for row in result["rows"]):
                row = dict(of)
                with recorded_error(row):
                    row |= run()
                result["rows"].append(row)
                result["attempts"] = 0
                write(result, folder / f"{name}.unfinished")
    finish(result, folder)


@contextlib.contextmanager
def recorded_error(record: dict[str, Any]) -> Iterator[None]:
    """Notes in `record` what went wrong, and goes on."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        traceback.print_exc()
        record["error"] = f"{type(error).__name__}: {error}"
    if "error" in record and torch.cuda.is_available():
        torch.cuda.empty_cache()


def run_in_a_process(name: str, folder: Path, seconds: float) -> None:
    """Runs a stage, and ends it with all that it has started when the time is over."""
    command = [sys.executable, __file__, *sys.argv[1:], "--stages", name, "--in_this_process"]
    process = subprocess.Popen(command, process_group=0, preexec_fn=end_with_parent)
    code = None
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    result = read_unfinished(name, folder)
    result["attempts"] = result.get("attempts", 0) + 1
    if code is None and result["attempts"] < MOST_ATTEMPTS:
        write(result, folder / f"{name}.unfinished")
    elif code != 0:
        error = "Stopped when the time was over" if code is None else f"The process ended with exit code {code}"
        finish(result | {"error": f"{error}."}, folder)


def end_with_parent() -> None:
    """Asks Linux to end this process when its parent ends, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def read_unfinished(name: str, folder: Path) -> dict[str, Any]:
    """Reads the results of an earlier run of the stage."""
    path = folder / f"{name}.unfinished"
    if path.exists():
        return json.loads(path.read_text())
    device = device_name(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    return {"stage": name, "rows": [], "device": device, "environment": describe_environment()}


def finish(result: dict[str, Any], folder: Path) -> None:
    """Writes the file by which a stage counts as done."""
    write(result, folder / f"{result['stage']}.json")
    (folder / f"{result['stage']}.unfinished").unlink(missing_ok=True)


def write(result: dict[str, Any], path: Path) -> None:
    """Writes all of a file or nothing, whenever the process is ended."""
    write_json(result, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def key_of(row: dict[str, Any]) -> tuple[str, int, int]:
    """Returns what compared rows of different engines share."""
    return row["shape"], row["prompt_length"], row["batch_size"]


def tables(folder: Path, others: list[dict[str, Any]]) -> str:
    """Writes a folder's figures as Markdown, and what could not be measured."""
    results = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    if not results:
        raise SystemExit(f"There are no results in {folder}.")
    rows = [{"stage": result["stage"], **row} for result in results for row in result["rows"]]
    measured = [row for row in rows if "error" not in row]
    of_llama = {key_of(row): row["ms_per_token"] for row in measured if "ms_per_token" in row}
    decoded = [row for row in measured if "part_of_floor" in row]
    environment = results[0]["environment"]
    parts = [f"{results[0]['device']}, torch {environment['torch']}, transformers {environment['transformers']}"]
    if decoded:
        nominal = decoded[0].get("nominal_bandwidth")
        parts[0] += (
            f": reads {decoded[0]['bandwidth'] / 1e9:.0f} GB/s{f' of {nominal / 1e9:.0f}' if nominal else ''}, "
            f"computes {decoded[0]['flops'] / 1e12:.0f} TFLOP/s"
        )
        parts.append(decoding_table(decoded, of_llama))
    if of_llama:
        header = ["Llama of the shape", "Prompt", "Batch", "ms/token"]
        parts.append(markdown_table(header, [[*key, f"{ms:.2f}"] for key, ms in of_llama.items()]))
    if others:
        header = ["Engine", "Shape", "Prompt", "Batch", "Tokens/s", "Ours, the best"]
        best = {key_of(row): row["tokens_per_s"] for row in sorted(decoded, key=lambda row: row["tokens_per_s"])}
        lines = [
            [row["name"], *key_of(row), f"{row['tokens_per_s']:.0f}", f"{best.get(key_of(row), 0):.0f}"]
            for row in others
        ]
        parts.append(markdown_table(header, lines, num_text_columns=2))
    parts += [training_table(trained)] if (trained := [row for row in measured if "tensors_mb" in row]) else []
    parts += [official_table(compared)] if (compared := [row for row in measured if "threshold" in row]) else []
    parts += [f"Tests: {row['output'].strip().splitlines()[-1]}" for row in measured if "exit_code" in row]
    failed = [row for row in [*rows, *results] if "error" in row]
    parts += [f"Not measured: {', '.join(f'{name}: {value}' for name, value in scalars(row))}" for row in failed]
    return "\n\n".join(parts)


def decoding_table(rows: list[dict[str, Any]], of_llama: dict[tuple[str, int, int], float]) -> str:
    """Tabulates decodes; the last column has the tokens per pass from which on they beat the Llama."""
    # By title, the figure and its form.
    columns = {
        "Passes": ("passes", "d"),
        "ms/pass": ("ms_per_pass", ".2f"),
        "Tokens/s": ("tokens_per_s", ".0f"),
        "Part of floor": ("part_of_floor", ".0%"),
        "Launches/pass": ("launches", ".0f"),
        "Waits/pass": ("waits", ".1f"),
        "Busy": ("busy", ".0%"),
        "Memory, MB": ("peak_memory_mb", ".0f"),
    }
    lines = []
    for row in rows:
        llama = of_llama.get(key_of(row))
        figures = [format(row[name], form) for name, form in columns.values()]
        setting = [row[name] for name in ("shape", "cache", "variant", "prompt_length", "batch_size")]
        lines.append([*setting, *figures, "" if llama is None else f"{row['ms_per_pass'] / llama:.1f}"])
    header = ["Shape", "Cache", "Variant", "Prompt", "Batch", *columns, "Pays from, tokens/pass"]
    return markdown_table(header, lines, num_text_columns=3)


def training_table(rows: list[dict[str, Any]]) -> str:
    """Tabulates steps; the weights are part of the peak memory."""
    header = ["Shape", "Weights", "Code", "Checkpointing", "Seconds", "Weights, GB", "Peak, GB"]
    lines = [
        [
            row["shape"],
            "4-bit" if row["load_in_4bit"] else "as they are",
            row["code"],
            "on" if row["activation_checkpointing"] else "off",
            f"{row['seconds']:.2f}",
            f"{row['weights_mb'] / 1024:.1f}",
            f"{(row['weights_mb'] + row['tensors_mb']) / 1024:.1f}",
        ]
        for row in rows
    ]
    return markdown_table(header, lines, num_text_columns=4)


def official_table(rows: list[dict[str, Any]]) -> str:
    """Compares both codes on the same weights."""
    header = ["Shape", "Cache", "Code", "Passes", "Seconds", "Memory, GB", "Same tokens"]
    lines = [
        [
            comparison["shape"],
            row["cache"],
            code,
            row[code]["nfe"],
            f"{row[code]['seconds']:.2f}",
            f"{row[code]['peak_memory_mb'] / 1024:.1f}",
            row["same_tokens"],
        ]
        for comparison in rows
        for row in comparison["rows"]
        for code in ("official", "ours")
    ]
    return markdown_table(header, lines, num_text_columns=3)


def scalars(row: dict[str, Any]) -> list[tuple[str, Any]]:
    """Returns a row's settings, and what went wrong."""
    return [(name, value) for name, value in row.items() if not isinstance(value, (dict, list))]


def main() -> None:
    (arguments,) = HfArgumentParser(KitArguments).parse_args_into_dataclasses()
    folder = Path(arguments.output_dir)
    if arguments.table:
        others = json.loads(Path(arguments.others).read_text()) if arguments.others else []
        print(tables(folder, others))
        return
    end = time.monotonic() + arguments.seconds
    # The next run finds the compiled kernels, too.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str((folder / "compiled").resolve()))
    # A stage does not outlive a run that is ended.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    for name, measurements in stages(arguments).items():
        if (folder / f"{name}.json").exists() or time.monotonic() >= end:
            continue
        print(f"== {name}", flush=True)
        if arguments.in_this_process:
            run_here(name, measurements(), folder)
        else:
            run_in_a_process(name, folder, end - time.monotonic())


if __name__ == "__main__":
    main()
