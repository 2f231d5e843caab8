# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The benchmarks of the dParallel paper (https://huggingface.co/papers/2509.26488) with its settings, and its methods."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .code_tasks import complete_from_chat, extract_from_chat


CANVAS_LENGTH = 256
BLOCK_LENGTH = 32


@dataclass(frozen=True)
class Benchmark:
    """A task of the harness as the paper uses it.

    Args:
        task (`str`): its name in the harness, or that of a group.
        title (`str`): of the table.
        num_fewshot (`int`): solved examples in the prompt.
        entropy_threshold (`float`): of dParallel on this task, in nats.
        metric (`str`): the column "Accuracy", as the harness names it: metric, filter.
        changes (`dict`): what differs from the harness's file.
    """

    task: str
    title: str
    num_fewshot: int
    entropy_threshold: float
    metric: str
    changes: dict[str, Any] = field(default_factory=dict)

    def spec(self, preset: str, is_group: bool) -> dict[str, Any]:
        """The task for the harness's task manager: a group with it alone, the only form in which it can be changed."""
        kind = "group" if is_group else "task"
        return {
            "group": f"{preset}-{self.task}",
            "task": [{kind: self.task, "num_fewshot": self.num_fewshot, **self.changes}],
        }


@dataclass(frozen=True)
class Preset:
    """The benchmarks of one of the paper's tables.

    Args:
        model (`str`): the model that the table is about.
        benchmarks (`tuple[Benchmark, ...]`): in the table's order.
        original (`dict`): the decoding of the model's authors, where it differs from one token per pass in blocks.
    """

    model: str
    benchmarks: tuple[Benchmark, ...]
    original: dict[str, Any] = field(default_factory=dict)


def _filter(name: str, function: Callable) -> list[dict[str, Any]]:
    return [{"name": name, "filter": [{"function": "custom", "filter_fn": function}]}]


# Prompts and thresholds are those of the published evaluation scripts. They ask LLaDA in a chat, also where the
# harness's task is meant for base models, and take the program from the block of code in the answer.
PRESETS = {
    "paper-llada": Preset(
        "GSAI-ML/LLaDA-8B-Instruct",
        (
            Benchmark(
                "gsm8k_cot_zeroshot",
                "GSM8K-CoT (0-shot)",
                0,
                0.5,
                "exact_match,flexible-extract",
                {
                    "doc_to_text": "Question: {{question}}\nAnswer: Please reason step by step, and put your final "
                    "answer within \\boxed{}.",
                    "generation_kwargs": {"until": ["Question:", "</s>", "<|im_end|>"], "do_sample": False},
                },
            ),
            Benchmark("minerva_math", "MATH (4-shot)", 4, 0.5, "math_verify,none"),
            Benchmark(
                "humaneval",
                "HumanEval (0-shot)",
                0,
                0.5,
                "pass@1,create_test",
                {
                    "doc_to_text": "Write a solution to the following problem and make sure that it passes the tests:\n"
                    "```python\n{{ prompt }}\n```\n ",
                    "generation_kwargs": {"until": [], "do_sample": False},
                    "filter_list": _filter("create_test", complete_from_chat),
                },
            ),
            Benchmark(
                "mbpp",
                "MBPP (3-shot)",
                3,
                0.45,
                "pass_at_1,extract_code",
                {"filter_list": _filter("extract_code", extract_from_chat)},
            ),
        ),
    ),
    "paper-dream": Preset(
        "Dream-org/Dream-v0-Instruct-7B",
        (
            Benchmark("gsm8k_cot_zeroshot", "GSM8K-CoT (0-shot)", 0, 0.45, "exact_match,flexible-extract"),
            Benchmark("minerva_math", "MATH (0-shot)", 0, 0.45, "math_verify,none"),
            Benchmark("humaneval_instruct", "HumanEval-Instruct (0-shot)", 0, 0.5, "pass@1,create_test"),
            Benchmark("mbpp_instruct", "MBPP-Instruct (0-shot)", 0, 0.5, "pass_at_1,extract_code"),
        ),
        original={"block_length": CANVAS_LENGTH, "do_sample": True, "temperature": 0.1, "top_p": 0.9},
    ),
}


@dataclass(frozen=True)
class Method:
    """A row of the paper's tables.

    Args:
        title (`str`): in the table.
        settings (`Callable`): gives the decoding settings from the preset, the benchmark and the length of the canvas.
        checkpoint (`str`): `"base"`, or the argument that names the adapter.
    """

    title: str
    settings: Callable[[Preset, Benchmark, int], dict[str, Any]]
    checkpoint: str = "base"


def _original(preset: Preset, benchmark: Benchmark, canvas: int) -> dict[str, Any]:
    settings = {"denoising_steps": canvas} | preset.original
    return settings | ({"block_length": canvas} if "block_length" in settings else {})


# Few-step decoding takes a quarter of the passes: 64 for 256 tokens.
METHODS = {
    "original": Method("Original", _original),
    "dual-cache": Method(
        "Dual-Cache", lambda preset, benchmark, canvas: {"denoising_steps": canvas, "cache_implementation": "dual"}
    ),
    "few-step": Method("Few-step Decoding", lambda preset, benchmark, canvas: {"denoising_steps": canvas // 4}),
    "conf-threshold": Method(
        "Conf-threshold Decoding", lambda preset, benchmark, canvas: {"confidence_threshold": 0.9}
    ),
    "consistency-distillation": Method(
        "Consistency Distillation",
        lambda preset, benchmark, canvas: {"denoising_steps": canvas // 4},
        checkpoint="consistency_adapter",
    ),
    "dparallel": Method(
        "dParallel",
        lambda preset, benchmark, canvas: {"entropy_threshold": benchmark.entropy_threshold},
        checkpoint="adapter",
    ),
}


def method_settings(
    method: str, preset: Preset, benchmark: Benchmark, canvas: int = CANVAS_LENGTH, block_length: int = BLOCK_LENGTH
) -> dict[str, Any]:
    """The decoding settings of a row. As in the paper, the whole canvas is decoded, past the end of the answer too."""
    common = {"max_new_tokens": canvas, "block_length": block_length, "stop_at_eos": False}
    return common | METHODS[method].settings(preset, benchmark, canvas)
