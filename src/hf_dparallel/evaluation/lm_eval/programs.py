# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The programming tasks of lm-eval, with each program in the sandbox, and found in its answer.

lm-eval scores programs by the metric `code_eval` of `evaluate`, which runs them beside the evaluation.
"""

import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import evaluate
from lm_eval import tasks
from lm_eval.tasks._yaml_loader import _load_module_with_cache
from transformers.utils import logging

from .sandbox import SandboxUnavailableError, run_program


logger = logging.get_logger(__name__)

# By folder of tasks, the name that its module gives the metric.
_METRICS = {"humaneval": "compute_", "humaneval_infilling": "compute_", "mbpp": "pass_at_k"}


class SandboxedCodeEval:
    """Stands in for the metric `code_eval`, which runs the programs itself where there is no sandbox."""

    def compute(
        self, references: Sequence[str], predictions: Sequence[Sequence[str]], k: Sequence[int] = (1, 10, 100)
    ) -> tuple[dict[str, float], dict[str, Any]]:
        """Returns the unbiased estimates of pass@k (https://huggingface.co/papers/2107.03374)."""
        if not has_sandbox():
            return evaluate.load("code_eval").compute(references=references, predictions=predictions, k=list(k))
        answers = zip(references, predictions, strict=True)
        is_wrong = [[not run_program(program, tests) for program in programs] for tests, programs in answers]
        scores = {
            f"pass@{size}": fmean(1 - math.comb(sum(each), size) / math.comb(len(each), size) for each in is_wrong)
            for size in k
            if size <= min(map(len, is_wrong))
        }
        return scores, {}


@cache
def has_sandbox() -> bool:
    """Tells whether programs can be isolated on this machine."""
    try:
        return run_program("")
    except SandboxUnavailableError as error:
        # Without a confirmation, lm-eval has not begun with the task.
        logger.warning(f"{error} Programs run without it, as --confirm_run_unsafe_code allows.")
        return False


def use_sandbox() -> None:
    """Makes the programming tasks of lm-eval run programs in the sandbox, and find them by [`code_of`]."""
    folder = Path(tasks.__file__).parent
    load = evaluate.load
    # The modules download the metric and try it when they are imported.
    evaluate.load = lambda *args, **kwargs: SimpleNamespace(compute=lambda **_: None)
    try:
        modules = {name: _load_module_with_cache(folder / name / "utils.py") for name in _METRICS}
    finally:
        evaluate.load = load
    for name, metric in _METRICS.items():
        setattr(modules[name], metric, SandboxedCodeEval())
    modules["mbpp"].extract_code_blocks = code_of
    modules["humaneval"].build_predictions_instruct = _complete


def code_of(answer: str) -> str:
    """Returns the program in an answer to a prompt that ends in an opened block of code.

    lm-eval's filter takes the first word of a program for the name of a language, and finds none where the answer is
    cut off in the block (https://github.com/EleutherAI/lm-evaluation-harness/issues/3710).
    """
    code, fence, rest = answer.partition("```")
    if fence and not code.strip():
        # The answer opens the block once more.
        code = rest.partition("\n")[2].partition("```")[0]
    return re.sub(r"\A\s*(python3?|py)\n", "", code)


def _complete(resps: list[list[str]], docs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    return [[doc["prompt"] + code_of(answer) for answer in answers] for answers, doc in zip(resps, docs, strict=True)]
