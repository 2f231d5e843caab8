# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The harness's tasks that execute generated programs, with a metric that runs them in a sandbox.

The YAML files in `tasks/` take the place of the harness's, under the same names. All but the metric is the harness's
own: its metric would download code from the Hub and run the programs beside the evaluation.
"""

import ast
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lm_eval import tasks
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml

from ..sandbox.runner import run_programs


TASKS_FOLDER = Path(__file__).parent / "tasks"
_HARNESS_FOLDER = Path(tasks.__file__).parent


class SandboxedCodeTask(ConfigurableTask):
    """A task of the harness that executes programs, with its metric replaced.

    Args:
        config (`dict`): the name of the task, and what else differs from the harness's file.
    """

    def __init__(self, config: dict[str, Any]):
        original = harness_config(config["task"])
        metadata = original.pop("metadata", {}) | config.get("metadata", {})
        changes = {name: value for name, value in config.items() if name not in ("class", "metadata")}
        super().__init__(config={**original, **changes, "metadata": metadata})


def pass_at_k(references: list[str], predictions: list[list[str]], k: int | list[int]) -> dict[str, float]:
    """The metric of the tasks `humaneval*`: the unbiased estimate of https://huggingface.co/papers/2107.03374."""
    ks = [k] if isinstance(k, int) else k
    scores: dict[int, list[float]] = {number: [] for number in ks}
    for reference, programs in zip(references, predictions, strict=True):
        num_passed = _count_passed(programs, reference)
        for number in ks:
            if number <= len(programs):
                wrong = len(programs) - num_passed
                scores[number].append(1 - math.comb(wrong, number) / math.comb(len(programs), number))
    return {f"pass@{number}": sum(values) / len(values) for number, values in scores.items() if values}


def pass_at_1(references: str | list[str], predictions: str | list[str] | list[list[str]]) -> float:
    """The metric of the tasks `mbpp*`: the share of the programs that pass."""
    references = [references] if isinstance(references, str) else references
    groups = [programs if isinstance(programs, list) else [programs] for programs in predictions]
    shares = [
        _count_passed(programs, reference) / len(programs)
        for reference, programs in zip(references, groups, strict=True)
    ]
    return sum(shares) / len(shares)


def complete_from_chat(resps: list[list[str]], docs: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A filter for `humaneval` asked in a chat: the first block of code in the answer, after the prompt."""
    return [
        [doc["prompt"] + ("\n" + code if (code := _fenced(answer)) else answer) for answer in answers]
        for answers, doc in zip(resps, docs, strict=True)
    ]


def extract_from_chat(resps: list[list[str]], docs: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A filter for `mbpp` asked in a chat: the first block of code in the answer, or the answer."""
    return [[_fenced(answer) or answer for answer in answers] for answers in resps]


def harness_config(name: str) -> dict[str, Any]:
    """Reads the harness's file of a task, with the functions of its `utils.py` but not its metrics."""
    folder = _HARNESS_FOLDER / name.split("_")[0]
    functions = _harmless_functions(folder / "utils.py")
    functions |= {"pass_at_k": pass_at_k, "pass_at_1": pass_at_1}

    def resolve(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: resolve(item) for key, item in value.items()}
        if isinstance(value, list):
            return [resolve(item) for item in value]
        if isinstance(value, str) and value.startswith(f"{folder}/utils."):
            return functions[value.rpartition(".")[2]]
        return value

    return resolve(load_yaml(folder / f"{name}.yaml", resolve_func=False))


def _harmless_functions(path: Path) -> dict[str, Callable]:
    """The functions of a module, without the statement that loads and runs `code_eval` when it is imported."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kept: list[ast.stmt] = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ImportFrom)
        or (isinstance(node, ast.Import) and node.names[0].name != "evaluate")
    ]
    namespace: dict[str, Any] = {}
    exec(compile(ast.Module(kept, []), str(path), "exec"), namespace)
    return namespace


def _count_passed(programs: Sequence[str], tests: str) -> int:
    return sum(result.passed for result in run_programs([f"{program}\n{tests}" for program in programs]))


def _fenced(answer: str) -> str | None:
    """The first block of code between Markdown fences. The last fence may be missing."""
    _, fence, rest = answer.partition("```")
    if not fence:
        return None
    return rest.partition("\n")[2].partition("```")[0]
