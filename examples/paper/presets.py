# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The benchmarks and the methods of https://huggingface.co/papers/2509.26488, with its settings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


CANVAS_LENGTH = 256
BLOCK_LENGTH = 32


@dataclass(frozen=True)
class PaperTask:
    """A task or group of the harness. What the paper changes of it is a group in `tasks/paper`."""

    task: str
    title: str
    # What dParallel has on this task, in nats.
    entropy_threshold: float
    # The column "Accuracy", as the harness names it: metric, filter.
    metric: str


@dataclass(frozen=True)
class Preset:
    """The model of one of the paper's tables, and its benchmarks in the table's order."""

    model: str
    benchmarks: tuple[PaperTask, ...]
    # The decoding of the model's authors, where it differs from one token per pass in blocks.
    original: dict[str, Any] = field(default_factory=dict)


# Prompts and thresholds as in the published evaluation scripts.
PRESETS = {
    "paper-llada": Preset(
        "GSAI-ML/LLaDA-8B-Instruct",
        (
            PaperTask("gsm8k_cot_zeroshot", "GSM8K-CoT (0-shot)", 0.5, "exact_match,flexible-extract"),
            PaperTask("minerva_math", "MATH (4-shot)", 0.5, "math_verify,none"),
            PaperTask("humaneval", "HumanEval (0-shot)", 0.5, "pass@1,create_test"),
            PaperTask("mbpp", "MBPP (3-shot)", 0.45, "pass_at_1,extract_code"),
        ),
    ),
    "paper-dream": Preset(
        "Dream-org/Dream-v0-Instruct-7B",
        (
            PaperTask("gsm8k_cot_zeroshot", "GSM8K-CoT (0-shot)", 0.45, "exact_match,flexible-extract"),
            PaperTask("minerva_math", "MATH (0-shot)", 0.45, "math_verify,none"),
            PaperTask("humaneval_instruct", "HumanEval-Instruct (0-shot)", 0.5, "pass@1,create_test"),
            PaperTask("mbpp_instruct", "MBPP-Instruct (0-shot)", 0.5, "pass_at_1,extract_code"),
        ),
        original={"block_length": CANVAS_LENGTH, "do_sample": True, "temperature": 0.1, "top_p": 0.9},
    ),
}


@dataclass(frozen=True)
class Method:
    """A row of the paper's tables."""

    title: str
    # From the preset, the benchmark and the length of the canvas.
    settings: Callable[[Preset, PaperTask, int], dict[str, Any]]
    # `"base"`, or the argument that names the adapter.
    checkpoint: str = "base"


def _original(preset: Preset, benchmark: PaperTask, canvas: int) -> dict[str, Any]:
    settings = {"denoising_steps": canvas} | preset.original
    return settings | ({"block_length": canvas} if "block_length" in settings else {})


def _few_step(preset: Preset, benchmark: PaperTask, canvas: int) -> dict[str, Any]:
    """Allows a quarter of the passes: 64 for 256 tokens."""
    return {"denoising_steps": canvas // 4}


METHODS = {
    "original": Method("Original", _original),
    "dual-cache": Method(
        "Dual-Cache", lambda _, __, canvas: {"denoising_steps": canvas, "cache_implementation": "dual"}
    ),
    "few-step": Method("Few-step Decoding", _few_step),
    "conf-threshold": Method("Conf-threshold Decoding", lambda *_: {"confidence_threshold": 0.9}),
    "consistency-distillation": Method("Consistency Distillation", _few_step, "consistency_adapter"),
    "dparallel": Method("dParallel", lambda _, task, __: {"entropy_threshold": task.entropy_threshold}, "adapter"),
}


def choose_benchmarks(preset: str, tasks: Sequence[str] | None = None) -> list[PaperTask]:
    """Returns the benchmarks of a preset, or those named."""
    benchmarks = {benchmark.task: benchmark for benchmark in PRESETS[preset].benchmarks}
    unknown = [task for task in tasks or [] if task not in benchmarks]
    if unknown:
        raise ValueError(
            f"`preset={preset}` has the tasks {', '.join(benchmarks)}, and not {', '.join(unknown)}. Leave it out, or "
            "run it without a preset."
        )
    return [benchmarks[task] for task in tasks or benchmarks]


def choose_methods(names: Sequence[str] | None = None) -> list[str]:
    """Returns the methods named, or dParallel."""
    unknown = [name for name in names or [] if name not in METHODS]
    if unknown:
        raise ValueError(f"`methods` must be among {', '.join(METHODS)}, got {', '.join(unknown)}.")
    return list(dict.fromkeys(names or ["dparallel"]))


def method_settings(
    method: str, preset: Preset, benchmark: PaperTask, changes: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """Returns a row's decoding settings. As in the paper, the whole canvas is decoded, past the answer's end too.
    Among `changes`, `max_new_tokens` also changes the number of passes in proportion.
    """
    canvas = changes.get("max_new_tokens", CANVAS_LENGTH)
    common = {"max_new_tokens": canvas, "block_length": BLOCK_LENGTH, "stop_at_eos": False}
    return common | METHODS[method].settings(preset, benchmark, canvas) | dict(changes)
