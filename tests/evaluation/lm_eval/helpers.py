# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Tiny models in the harness, and what they are asked."""

import shutil
from pathlib import Path

import pytest
from lm_eval.api.instance import Instance

from hf_dparallel.evaluation.lm_eval import DiffusionHarnessLM

from ...helpers import make_llada, make_tokenizer


DATASETS = Path(__file__).parents[2] / "fixtures" / "datasets"
needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
CANVAS = {"max_new_tokens": 16, "block_length": 8}


def make_lm(model=None, **arguments) -> DiffusionHarnessLM:
    settings = {"tokenizer": make_tokenizer(), "entropy_threshold": 1.0, **CANVAS}
    return DiffusionHarnessLM(model or make_llada(), **(settings | arguments))


def make_requests(texts, gen_kwargs=None, task="task") -> list[Instance]:
    return [
        Instance("generate_until", {"text": text}, (text, dict(gen_kwargs or {})), 0, (task, number, 1))
        for number, text in enumerate(texts)
    ]
