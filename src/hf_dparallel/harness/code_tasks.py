# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Metrics and filters of tasks that execute generated programs, each in a sandbox.

The YAML files in `tasks/` take the place of the harness's, under the same names. They differ in nothing but their
functions: the harness's download a metric from the Hub when they are imported, and run programs beside the evaluation.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..sandbox.programs import run_programs


TASKS_FOLDER = Path(__file__).parent / "tasks"
# Turns the answers to each document into programs.
Filter = Callable[[list[list[str]], Sequence[dict[str, Any]]], list[list[str]]]


def is_sandboxed(config: Mapping[str, Any]) -> bool:
    """Returns whether all metrics of a task are in this module. Until the task is loaded, they are paths."""
    metrics = [metric["metric"] for metric in config.get("metric_list") or []]
    paths = [metric if isinstance(metric, str) else f"{metric.__module__}.{metric.__name__}" for metric in metrics]
    names = {Path(path).name.rpartition(".")[0] for path in paths}
    # A function for the results takes the place of the metrics.
    return names == {__name__} and config.get("process_results") is None


# Metrics.


def pass_at_k(references: list[str], predictions: list[list[str]], k: int | list[int]) -> dict[str, float]:
    """Scores `humaneval*` by the unbiased estimate of https://huggingface.co/papers/2107.03374."""
    # Of each document, how many programs there are, and how many are wrong.
    counts = []
    for tests, programs in zip(references, predictions, strict=True):
        results = run_programs(programs, [tests] * len(programs))
        counts.append((len(programs), sum(not result.passed for result in results)))
    scores = {
        number: [1 - math.comb(wrong, number) / math.comb(total, number) for total, wrong in counts if number <= total]
        for number in ([k] if isinstance(k, int) else k)
    }
    return {f"pass@{number}": sum(values) / len(values) for number, values in scores.items() if values}


def pass_at_1(references: str | list[str], predictions: str | list[str] | list[list[str]]) -> float:
    """Scores `mbpp*` by the share of programs that pass."""
    references = [references] if isinstance(references, str) else references
    groups = [programs if isinstance(programs, list) else [programs] for programs in predictions]
    return pass_at_k(references, groups, 1)["pass@1"]


# Filters: they make programs of answers.


def _opened_block(answer: str) -> str:
    """Returns the harness's block of code, even where the answer opens it once more."""
    pattern = re.compile(r"```(?:\w+)?\n?(.*?)\n?```", re.DOTALL)
    found = pattern.search(f"```{answer}") or pattern.search(answer.replace("```python", "```"))
    return found[1] if found else ""


def _filter(make_program: Callable[[str, dict[str, Any]], str]) -> Filter:
    def filter_answers(resps: list[list[str]], docs: Sequence[dict[str, Any]]) -> list[list[str]]:
        return [[make_program(answer, doc) for answer in answers] for answers, doc in zip(resps, docs, strict=True)]

    return filter_answers


# For `humaneval`: the answer continues the prompt.
continue_prompt = _filter(lambda answer, doc: doc["prompt"] + answer)
# For `humaneval_instruct`: it does so until its block of code ends.
continue_prompt_until_fence = _filter(lambda answer, doc: doc["prompt"] + answer.partition("```")[0])
# For `mbpp_instruct`: the rest of the block of code that the prompt has opened.
extract_opened_block = _filter(lambda answer, doc: _opened_block(answer))
