# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Replaces, in lm-eval's tasks humaneval and mbpp, how programs are run and how they are found in an answer.

Both are functions of modules that the tasks name in YAML, and no option reaches them (lm-eval 0.4.13). This file can
go when lm-eval lets a model or an option say who runs the programs, and when it has closed
https://github.com/EleutherAI/lm-evaluation-harness/issues/3710: its filter takes the first word of a program for the
name of a language, and finds none where the answer is cut off in the block.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import evaluate
from lm_eval import tasks
from lm_eval.tasks._yaml_loader import _load_module_with_cache

from .programs import SandboxedCodeEval, code_of


def patch_tasks() -> None:
    """Makes the programming tasks run programs in the sandbox, and find them by [`code_of`]."""
    load = evaluate.load
    # The modules download the metric `code_eval` and try it when they are imported.
    evaluate.load = lambda *args, **kwargs: SimpleNamespace(compute=lambda **_: None)
    try:
        humaneval = _module("humaneval")
        infilling = _module("humaneval_infilling")
        mbpp = _module("mbpp")
    finally:
        evaluate.load = load

    humaneval.compute_ = SandboxedCodeEval()
    infilling.compute_ = SandboxedCodeEval()
    mbpp.pass_at_k = SandboxedCodeEval()

    humaneval.build_predictions_instruct = _complete
    mbpp.extract_code_blocks = code_of


def _module(task: str) -> Any:
    # A private name: the loader keeps the modules of YAML files by names of its own.
    return _load_module_with_cache(Path(tasks.__file__).parent / task / "utils.py")


def _complete(resps: list[list[str]], docs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Continues each prompt with the program in its answers, as `build_predictions_instruct` does."""
    completed = []
    for answers, doc in zip(resps, docs, strict=True):
        prompt = doc["prompt"]
        completed.append([prompt + code_of(answer, prompt) for answer in answers])
    return completed
