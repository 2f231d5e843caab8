# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Finds the program in an answer, and scores programs that run in the sandbox."""

import ast
import math
import re
from collections.abc import Sequence
from functools import cache
from statistics import fmean
from typing import Any

import evaluate
from transformers.utils import logging

from .sandbox import SandboxUnavailableError, run_program


logger = logging.get_logger(__name__)


class SandboxedCodeEval:
    """Computes the metric `code_eval` of `evaluate`, which runs the programs itself where there is no sandbox."""

    def compute(
        self, references: Sequence[str], predictions: Sequence[Sequence[str]], k: Sequence[int] = (1, 10, 100)
    ) -> tuple[dict[str, float], dict[str, Any]]:
        """Returns the unbiased estimates of pass@k (https://huggingface.co/papers/2107.03374)."""
        if not has_sandbox():
            return evaluate.load("code_eval").compute(references=references, predictions=predictions, k=list(k))

        num_programs = []
        num_wrong = []
        for tests, programs in zip(references, predictions, strict=True):
            passed = [run_program(program, tests) for program in programs]
            num_programs.append(len(passed))
            num_wrong.append(passed.count(False))

        scores = {}
        for size in k:
            if size <= min(num_programs):
                pairs = zip(num_wrong, num_programs, strict=True)
                failures = [math.comb(wrong, size) / math.comb(number, size) for wrong, number in pairs]
                scores[f"pass@{size}"] = 1 - fmean(failures)
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


def code_of(answer: str, prompt: str = "") -> str:
    """Returns the program in an answer to a prompt that ends in an opened block of code.

    That is the rest of the block, or where this is a sentence ("Here it is:"), the first program in a block after it.
    The body of a function counts as one if the `prompt` ends in its head.
    """
    opened, *parts = answer.split("```")
    opened = re.sub(r"\A\s*(python3?|py)[ \t]*\n", "", opened, flags=re.IGNORECASE)
    if _is_program(opened, prompt):
        return opened

    for part in parts:
        block = part.partition("\n")[2]  # after the name of the language
        if _is_program(block, prompt):
            return block
    return opened


def _is_program(text: str, prompt: str) -> bool:
    """Tells programs from sentences: Python cannot parse these, or reads a name ("Solution") that does nothing."""
    for source in (text, prompt + text):
        try:
            statements = ast.parse(source).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return any(not isinstance(statement, ast.Expr) for statement in statements)
    return False
