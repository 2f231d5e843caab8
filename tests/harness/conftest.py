# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Tiny models in the harness, and stand-ins for the data sets of the paper with the real tasks of the harness."""

from pathlib import Path

import pytest
from lm_eval import tasks
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

from hf_dparallel.harness import DiffusionHarnessLM, selection

from ..helpers import make_llada, make_tokenizer


DATASETS = Path(__file__).parents[1] / "fixtures" / "datasets"
HARNESS_TASKS = Path(tasks.__file__).parent
CANVAS = {"max_new_tokens": 16, "block_length": 8}


def make_lm(model=None, **arguments) -> DiffusionHarnessLM:
    settings = {"tokenizer": make_tokenizer(), "entropy_threshold": 1.0, **CANVAS}
    return DiffusionHarnessLM(model or make_llada(), **(settings | arguments))


def make_requests(texts, gen_kwargs=None, task="task") -> list[Instance]:
    return [
        Instance("generate_until", {"text": text}, (text, dict(gen_kwargs or {})), 0, (task, number, 1))
        for number, text in enumerate(texts)
    ]


@pytest.fixture
def _in_datasets(monkeypatch, tmp_path_factory):
    """In this folder `load_dataset("openai/gsm8k", "main")` finds a folder of that name, and does all else as ever."""
    monkeypatch.chdir(DATASETS)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets")


@pytest.fixture
def _few_tasks(monkeypatch, tmp_path):
    """The task manager looks through the harness's files of four benchmarks instead of all 15 thousand."""
    group = tmp_path / "groups" / "minerva_math.yaml"
    group.parent.mkdir()
    group.symlink_to(HARNESS_TASKS / "benchmarks" / "minerva_math.yaml")
    folders = [HARNESS_TASKS / name for name in ("gsm8k", "minerva_math", "humaneval", "mbpp")]

    def few(include_path=None, include_defaults=True):
        of_user = [include_path] if include_path else []
        defaults = [*folders, group.parent] if include_defaults else []
        return TaskManager(include_path=[*defaults, *of_user], include_defaults=False)

    monkeypatch.setattr(selection, "TaskManager", few)
    # It runs programs to describe the machine.
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)
