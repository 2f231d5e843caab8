# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Everything there is to measure on a GPU, in stages, for as long as there is one.

    export PYTHONPATH=src
    python benchmarks/gpu.py --output_dir gpu_results --seconds 560          # the stages that are missing there
    python benchmarks/gpu.py --output_dir gpu_results --stages 'exact-*'     # some of them
    python benchmarks/gpu.py --output_dir gpu_results --table > gpu.md       # tables of what is there
    python -m pytest -o addopts= -m gpu tests/device/test_gpu.py             # the tests that need a GPU

Needs torch, transformers and peft. Each row is written as soon as it is measured, errors included, and the next run
goes on from there, with the kernels that are compiled already. A row that would not end in the time left is not begun,
and one that was begun twice and never ended is left out. To measure a stage again, delete its file.

Three runs of ten minutes should measure all that counts: the stages come in the order of what they tell. An eager row
of 8B should take some 10 s, a compiled one 60 to 120 s more, and a model 15 s to be made.

The weights are random. Diffusion models decode on a fixed schedule, in as many passes as the paper took on GSM8K.
Exact decoding accepts drafts on a fixed schedule (`REJECTED_EVERY` in speed.py): 4 tokens a pass.
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
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from speed import (
    SHAPES,
    Machine,
    measure_decoding,
    measure_exact,
    measure_machine,
    random_model,
    random_prompts,
    timed,
)
from transformers import AutoModelForCausalLM, HfArgumentParser, LlamaConfig, PreTrainedModel

from hf_dparallel.environment import describe_environment, device_name
from hf_dparallel.reports import markdown_table, write_json


# Passes for 256 tokens: dParallel's on GSM8K (tables 1 and 2 of https://arxiv.org/abs/2509.26488).
PASSES = {"llada-8b": 30, "dream-7b": 39}
BLOCK_LENGTH = 32
# No cache first, and last the one that computes least.
CACHES = {"llada": ("none", "prefix", "dual"), "Dream": ("none", "prefix", "dual"), "sdar": ("none", "block")}
RANK = 32
# For the time that a row takes: of a pass that waits for the host, and of a token of 8B.
_PASS_SECONDS = 0.05
_TOKEN_SECONDS = 6e-5

# Settings of a measurement, and the function that measures.
Measurements = Iterator[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]


@dataclass
class KitArguments:
    """What is measured."""

    output_dir: str = field(metadata={"help": "Folder for a JSON file of each stage."})
    stages: str = field(default="*", metadata={"help": "Pattern of the stages to run."})
    table: bool = field(default=False, metadata={"help": "Print tables of what is there, and measure nothing."})
    shapes: list[str] = field(
        default_factory=lambda: ["llada-8b", "sdar-8b", "dream-7b"], metadata={"help": "Shapes of diffusion models."}
    )
    llama: str = field(default="llama-8b", metadata={"help": "Shape of the Llama, for exact decoding and beside it."})
    batch_sizes: list[int] = field(default_factory=lambda: [1, 4, 16], metadata={"help": "Prompts decoded together."})
    prompt_lengths: list[int] = field(
        default_factory=lambda: [512, 2048, 64], metadata={"help": "Tokens of a prompt."}
    )
    max_new_tokens: int = field(default=256, metadata={"help": "Tokens of an answer."})
    repeats: int = field(default=3, metadata={"help": "Calls that are timed; their median counts."})
    seconds: float = field(default=math.inf, metadata={"help": "Start nothing that would take longer."})
    compile_seconds: float = field(default=120.0, metadata={"help": "Allowed for the first call of a compiled row."})
    device: str = field(default="cuda", metadata={"help": "cuda, or cpu to try it."})
    dtype: str = field(default="bfloat16", metadata={"help": "Of the weights."})

    def passes(self, shape: str) -> int:
        """Returns the forward passes for an answer, in proportion to its length."""
        return PASSES.get(shape, PASSES["llada-8b"]) * self.max_new_tokens // 256

    def sizes(self) -> list[tuple[int, int]]:
        """Returns prompt lengths and batch sizes: the first of both, then the others of each."""
        prompt_length = self.prompt_lengths[0]
        batch_size = self.batch_sizes[0]
        others = [(length, batch_size) for length in self.prompt_lengths[1:]]
        return [(prompt_length, batch_size), *others, *((prompt_length, size) for size in self.batch_sizes[1:])]

    def estimate(self, of: Mapping[str, Any]) -> float:
        """Returns how many seconds a row takes, about: an 8B model on an H100."""
        if "prompt_length" not in of:
            # A training step.
            return 30.0
        tokens = of["batch_size"] * (of["prompt_length"] + self.max_new_tokens)
        passes = self.passes(of["shape"])
        call = passes * (_PASS_SECONDS + tokens * _TOKEN_SECONDS)
        return (self.repeats + 2) * call + (self.compile_seconds if of.get("compiled", True) else 0.0)


def stages(arguments: KitArguments) -> dict[str, Callable[[], Measurements]]:
    """Returns the stages by name, the most wanted first."""
    first, *others = arguments.sizes()
    shapes = arguments.shapes
    llama = arguments.llama
    found = {f"decode-{shapes[0]}": functools.partial(decoding, arguments, shapes[0], first)}
    found[f"llama-{llama}"] = functools.partial(llama_decoding, arguments, [first])
    found[f"exact-{llama}"] = functools.partial(exact_decoding, arguments, [first])
    found[f"adapter-{shapes[0]}"] = functools.partial(adapted_decoding, arguments, shapes[0], first)
    found |= {f"decode-{shape}": functools.partial(decoding, arguments, shape, first) for shape in shapes[1:]}
    if others:
        found[f"sizes-{shapes[0]}"] = functools.partial(decoding_of_sizes, arguments, shapes[0], others)
        found[f"sizes-llama-{llama}"] = functools.partial(llama_decoding, arguments, others)
        found[f"sizes-exact-{llama}"] = functools.partial(exact_decoding, arguments, others)
        for shape in shapes[1:]:
            found[f"sizes-{shape}"] = functools.partial(decoding_of_sizes, arguments, shape, others)
    found[f"train-{shapes[0]}"] = functools.partial(training, arguments, shapes[0])
    return {name: stage for name, stage in found.items() if fnmatch.fnmatch(name, arguments.stages)}


def random_student(arguments: KitArguments, shape: str) -> tuple[PreTrainedModel, Machine]:
    """Makes a model, and measures what the machine can do."""
    dtype = getattr(torch, arguments.dtype)
    return random_model(shape, dtype, arguments.device), machine_of(dtype, arguments.device)


@functools.cache
def machine_of(dtype: torch.dtype, device: str) -> Machine:
    """Measures the machine once."""
    return measure_machine(dtype, device)


def decode(arguments: KitArguments, model: PreTrainedModel, machine: Machine, of: Mapping[str, Any]) -> dict[str, Any]:
    """Times decoding beside the least time that reading the weights and multiplying with them takes."""
    figures = measure_decoding(
        model,
        machine,
        batch_size=of["batch_size"],
        prompt_length=of["prompt_length"],
        max_new_tokens=arguments.max_new_tokens,
        block_length=BLOCK_LENGTH,
        passes=arguments.passes(of["shape"]),
        cache=None if of["cache"] == "none" else of["cache"],
        repeats=arguments.repeats,
        compiled=of["compiled"],
        profiled=True,
    )
    return figures | vars(machine)


def settings_of(shape: str, size: tuple[int, int], cache: str, adapter: str, compiled: bool) -> dict[str, Any]:
    """Returns what a row is about."""
    of = {"shape": shape, "prompt_length": size[0], "batch_size": size[1]}
    return of | {"cache": cache, "adapter": adapter, "compiled": compiled}


def decoding(arguments: KitArguments, shape: str, size: tuple[int, int]) -> Measurements:
    """Times decoding with each cache, as it is and compiled."""
    model, machine = random_student(arguments, shape)
    for compiled in (False, True):
        for cache in CACHES[SHAPES[shape].model_type]:
            of = settings_of(shape, size, cache, "none", compiled)
            yield of, functools.partial(decode, arguments, model, machine, of)


def decoding_of_sizes(arguments: KitArguments, shape: str, sizes: list[tuple[int, int]]) -> Measurements:
    """Times decoding without a cache and with the last one, and the latter compiled."""
    model, machine = random_student(arguments, shape)
    uncached, *_, cached = CACHES[SHAPES[shape].model_type]
    for cache, compiled in ((uncached, False), (cached, False), (cached, True)):
        for size in sizes:
            of = settings_of(shape, size, cache, "none", compiled)
            yield of, functools.partial(decode, arguments, model, machine, of)


def adapted_decoding(arguments: KitArguments, shape: str, size: tuple[int, int]) -> Measurements:
    """Times decoding with a LoRA on all linear layers, beside its base and merged into it."""
    model, machine = random_student(arguments, shape)
    model.add_adapter(LoraConfig(r=RANK, target_modules=model.target_modules))
    model.eval()

    def run(of: Mapping[str, Any]) -> dict[str, Any]:
        # Half precision is not taken apart again, so merged rows come last.
        if of["adapter"] == "merged":
            model.merge_adapter()
        return decode(arguments, model, machine, of)

    for adapter in ("unmerged", "merged"):
        for compiled in (False, True):
            of = settings_of(shape, size, "none", adapter, compiled)
            yield of, functools.partial(run, of)


def exact_decoding(arguments: KitArguments, sizes: list[tuple[int, int]]) -> Measurements:
    """Times exact decoding with an adapter on masks."""
    model, machine = random_student(arguments, arguments.llama)
    model.add_adapter(model.prepare_adapter(LoraConfig(r=RANK, target_modules=model.target_modules)))
    model.eval()

    def run(of: Mapping[str, Any]) -> dict[str, Any]:
        figures = measure_exact(
            model,
            machine,
            batch_size=of["batch_size"],
            prompt_length=of["prompt_length"],
            max_new_tokens=arguments.max_new_tokens,
            repeats=arguments.repeats,
            compiled=of["compiled"],
            profiled=True,
        )
        return figures | vars(machine)

    for size in sizes:
        for compiled in (False, True):
            of = settings_of(arguments.llama, size, "exact", "on masks", compiled)
            yield of, functools.partial(run, of)


def llama_decoding(arguments: KitArguments, sizes: list[tuple[int, int]]) -> Measurements:
    """Times a Llama of transformers, which compiles it, with a static cache."""
    llama = random_llama(arguments.llama, getattr(torch, arguments.dtype), arguments.device)

    def run(prompt_length: int, batch_size: int) -> dict[str, Any]:
        # Kernels compiled for other shapes would make later ones compile for any shape.
        torch.compiler.reset()
        prompts = random_prompts(llama, batch_size, prompt_length)
        mask = torch.ones_like(prompts)
        settings = {"max_new_tokens": arguments.max_new_tokens, "do_sample": False, "cache_implementation": "static"}
        decode = functools.partial(llama.generate, prompts, attention_mask=mask, **settings)
        # The first call compiles, and the second one records.
        decode()
        decode()
        seconds = statistics.median(timed(decode, arguments.device) for _ in range(arguments.repeats))
        tokens = batch_size * arguments.max_new_tokens
        return {"llama_ms_per_token": 1000 * seconds / arguments.max_new_tokens, "tokens_per_s": tokens / seconds}

    for prompt_length, batch_size in sizes:
        of = {"prompt_length": prompt_length, "batch_size": batch_size}
        yield {"shape": arguments.llama} | of, functools.partial(run, **of)


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
    import train

    settings = train.TrainingSpeedArguments(
        shape=shape,
        dtype=arguments.dtype,
        device=arguments.device,
        repeats=arguments.repeats,
        max_length=64 + arguments.max_new_tokens,
        prompt_length=64,
    )
    with tempfile.TemporaryDirectory() as folder:
        for of, run in train.measurements(settings, folder):
            yield {"shape": shape, **of}, run


def run_stage(name: str, measurements: Callable[[], Measurements], arguments: KitArguments, end: float) -> None:
    """Writes the rows of a stage, each as soon as it is measured, after those that an earlier run left behind."""
    path = Path(arguments.output_dir, f"{name}.json")
    result = read(path) or {"stage": name, "rows": [], "begun": [], "is_complete": False}
    device = device_name(torch.device(arguments.device))
    if result["is_complete"] == device:
        return

    result["environment"] = describe_environment()
    is_complete = True
    for of, run in measurements():
        of = of | {"device": device}
        if any(of.items() <= row.items() for row in result["rows"]):
            continue
        if time.monotonic() + arguments.estimate(of) >= end:
            is_complete = False
            continue

        if result["begun"].count(of) >= 2:
            row = of | {"error": "begun twice and never ended"}
        else:
            result["begun"].append(of)
            write(result, path)
            row = of | measured(run)
        result["rows"].append(row)
        write(result, path)
        check_device(arguments.device)
    if is_complete:
        write(result | {"is_complete": device}, path)


def measured(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Returns the figures of a row and how long they took, or the error."""
    start = time.monotonic()
    try:
        figures = run()
    except Exception as error:  # noqa: BLE001
        traceback.print_exc()
        figures = {"error": f"{type(error).__name__}: {error}"}
    figures["took_s"] = time.monotonic() - start
    clear()
    return figures


def clear() -> None:
    """Gives back what the last measurement has left: memory, compiled code, recorded graphs."""
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()


def check_device(device: str) -> None:
    """Ends the program if the last error has broken the device, for this process: each further row would fail."""
    if device == "cuda":
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            raise SystemExit(f"The device has failed: {error}. Run this again to go on.") from error


def read(path: Path) -> dict[str, Any] | None:
    """Returns what an earlier run has left, if it can be read."""
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text())
    except ValueError:
        print(f"{path} cannot be read. It is kept as {path.name}.broken.", flush=True)
        path.replace(path.with_name(f"{path.name}.broken"))
        return None


def write(result: dict[str, Any], path: Path) -> None:
    """Writes all of a file or nothing, whenever the process is ended."""
    write_json(result, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


# Tables


def tables(folder: Path) -> str:
    """Writes a folder's figures as Markdown, and what could not be measured."""
    results = [result for path in sorted(folder.glob("*.json")) if (result := read(path))]
    rows = [row for result in results for row in result["rows"]]
    if not rows:
        raise SystemExit(f"There are no results in {folder}.")

    versions = results[0]["environment"]
    parts = [f"torch {versions['torch']}, transformers {versions['transformers']}, peft {versions['peft']}"]
    for device in sorted({row["device"] for row in rows}):
        parts += tables_of_device(device, [row for row in rows if row["device"] == device and "error" not in row])
    parts += [f"Not measured: {row}" for row in rows if "error" in row or "profile_error" in row]
    return "\n\n".join(parts)


def tables_of_device(device: str, rows: list[dict[str, Any]]) -> list[str]:
    """Returns what was measured on one device: decoding, exact decoding, the Llama, training."""
    decoded = [row for row in rows if "part_of_floor" in row]
    parts = [f"**{device}**"]
    if decoded:
        machine = decoded[0]
        parts[0] += f": reads {machine['bandwidth'] / 1e9:.0f} GB/s, computes {machine['flops'] / 1e12:.0f} TFLOP/s"
        parts.append(table_of_passes(decoded))

    llamas = {key_of(row): row for row in rows if "llama_ms_per_token" in row}
    if llamas:
        lines = [
            [*key, f"{row['llama_ms_per_token']:.2f}", f"{row['tokens_per_s']:.0f}"] for key, row in llamas.items()
        ]
        parts.append(markdown_table(["llama", "prompt", "batch", "ms/token", "tokens/s"], lines, num_text_columns=1))

    lines = []
    for row in decoded:
        llama = llamas.get(key_of(row))
        if row["cache"] == "exact" and llama:
            times = row["tokens_per_s"] / llama["tokens_per_s"]
            part = times / row["tokens_per_pass"]
            of_row = [row["compiled"], *key_of(row), row["tokens_per_pass"], row["tokens_per_s"], times, part]
            lines.append([value if isinstance(value, str | int) else f"{value:.2f}" for value in of_row])
    if lines:
        titles = ["compiled", "exact", "prompt", "batch", "tokens/pass", "tokens/s", "times Llama", "of tokens/pass"]
        parts.append(markdown_table(titles, lines, num_text_columns=2))

    lines = []
    for row in rows:
        if "tensors_mb" in row:
            figures = (f"{row['seconds']:.2f}", f"{row['weights_mb']:.0f}", f"{row['tensors_mb']:.0f}")
            lines.append([row["shape"], row["activation_checkpointing"], *figures])
    if lines:
        titles = ["trained", "checkpointing", "seconds", "weights, MB", "tensors, MB"]
        parts.append(markdown_table(titles, lines, num_text_columns=2))
    return parts


def key_of(row: Mapping[str, Any]) -> tuple[str, int, int]:
    """Returns the settings that rows of a Llama and of exact decoding share."""
    return row["shape"], row["prompt_length"], row["batch_size"]


def table_of_passes(rows: list[dict[str, Any]]) -> str:
    """Tabulates decoding, a line for each cache: as it is and compiled, against the floor and against no cache."""
    titles = ["shape", "cache", "adapter", "prompt", "batch", "passes", "floor, ms"]
    for way in ("eager", "compiled"):
        titles += [f"{way}, ms/pass", "/ floor", "/ no cache", "launches", "waits", "busy", "MB"]
    titles += ["first call, s", "reserved, MB"]

    by_line: dict[tuple, dict[bool, dict[str, Any]]] = {}
    for row in rows:
        line = (row["shape"], row["cache"], row["adapter"], row["prompt_length"], row["batch_size"])
        by_line.setdefault(line, {})[row["compiled"]] = row

    lines = []
    for (shape, cache, adapter, *size), ways in by_line.items():
        either = next(iter(ways.values()))
        cells = [shape, cache, adapter, *size, either["passes"], f"{either['floor_ms_per_pass']:.2f}"]
        for is_compiled in (False, True):
            uncached = by_line.get((shape, "none", adapter, *size), {}).get(is_compiled)
            cells += _cells(ways.get(is_compiled), uncached)
        compiled = ways.get(True)
        lines.append(
            [*cells, *(f"{compiled[name]:.0f}" if compiled else "" for name in ("first_call_s", "reserved_mb"))]
        )
    return markdown_table(titles, lines, num_text_columns=3)


def _cells(row: dict[str, Any] | None, uncached: dict[str, Any] | None) -> list[str]:
    if row is None:
        return [""] * 7
    against = f"{uncached['tokens_per_s'] / row['tokens_per_s']:.2f}" if uncached else ""
    memory = "" if row["peak_memory_mb"] is None else f"{row['peak_memory_mb']:.0f}"
    times = [f"{row['ms_per_pass']:.2f}", f"{1 / row['part_of_floor']:.2f}", against]
    counts = ["", "", ""]
    if "profile_error" not in row:
        counts = [f"{row['launches']:.0f}", f"{row['waits']:.1f}", f"{row['busy']:.0%}"]
    return [*times, *counts, memory]


def main() -> None:
    (arguments,) = HfArgumentParser(KitArguments).parse_args_into_dataclasses()
    folder = Path(arguments.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.table:
        print(tables(folder))
        return

    end = time.monotonic() + arguments.seconds
    # The next run finds the compiled kernels, too. Imports may have set another folder.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str((folder / "compiled").resolve())
    for name, measurements in stages(arguments).items():
        if time.monotonic() >= end:
            break
        print(f"== {name}", flush=True)
        clear()
        try:
            run_stage(name, measurements, arguments, end)
        except Exception:  # noqa: BLE001
            # A model that cannot be made must not cost the other stages the device; its stage stays incomplete.
            traceback.print_exc()


if __name__ == "__main__":
    main()
