# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The harness's tasks that execute programs, with our metric."""

import re
import runpy
from unittest.mock import MagicMock

import pytest
from lm_eval.tasks._yaml_loader import load_yaml

from hf_dparallel.harness import code_tasks
from hf_dparallel.harness.code_tasks import (
    TASKS_FOLDER,
    is_sandboxed,
    pass_at_1,
    pass_at_k,
)
from hf_dparallel.harness.selection import make_task_manager

from .helpers import HARNESS_TASKS


NAMES = sorted(path.stem for path in TASKS_FOLDER.glob("*.yaml"))
RIGHT, WRONG, LEAVING = "def f(x):\n    return 2 * x", "def f(x):\n    return x", "raise SystemExit(0)"
TESTS = "assert f(2) == 4"


def test_each_task_of_the_harness_that_needs_it_is_replaced():
    unsafe = {
        path.stem
        for folder in ("humaneval", "mbpp")
        for path in (HARNESS_TASKS / folder).glob("*.yaml")
        if load_yaml(path, resolve_func=False).get("unsafe_code")
    }
    assert set(NAMES) == unsafe


@pytest.fixture
def harness_functions(monkeypatch) -> dict:
    """The functions of the harness's tasks, by folder. Importing them would download and run a metric."""
    monkeypatch.setattr("evaluate.load", MagicMock())
    paths = {folder: str(HARNESS_TASKS / folder / "utils.py") for folder in ("humaneval", "mbpp")}
    return {folder: runpy.run_path(path, run_name="utils") for folder, path in paths.items()}


@pytest.mark.parametrize("name", NAMES)
def test_nothing_but_functions_differs_from_the_files_of_the_harness(name, harness_functions):
    folder = name.split("_")[0]
    ours = load_yaml(TASKS_FOLDER / f"{name}.yaml", resolve_func=False)
    theirs = load_yaml(HARNESS_TASKS / folder / f"{name}.yaml", resolve_func=False)
    if folder == "mbpp":
        theirs["fewshot_config"]["samples"] = harness_functions["mbpp"]["list_fewshot_samples"]()

    def plain(config):
        return re.sub(r"'[^']*(utils|code_tasks)\.\w+'", "FUNCTION", repr(sorted(config.items())))

    assert plain(ours) == plain(theirs)
    assert is_sandboxed(ours) and not is_sandboxed(theirs)


@pytest.mark.parametrize(
    "answer",
    ["    return 1", "x\n```", "\nx\n```\nand more", "x", "```python\ny\n```", "a\n```\nb\n```python\nc", "", "```"],
)
def test_filters_give_the_programs_of_the_harness(answer, harness_functions):
    answers, docs = [[answer, "z"]], [{"prompt": "def f():\n"}]
    for ours, folder, theirs in [
        (code_tasks.continue_prompt, "humaneval", "build_predictions"),
        (code_tasks.continue_prompt_until_fence, "humaneval", "build_predictions_instruct"),
        (code_tasks.extract_opened_block, "mbpp", "build_predictions"),
    ]:
        assert ours(answers, docs) == harness_functions[folder][theirs](answers, docs)


def test_a_task_is_sandboxed_by_its_metrics_alone():
    def passes(*metrics, **config) -> bool:
        return is_sandboxed({"metric_list": [{"metric": metric} for metric in metrics], **config})

    assert passes(pass_at_1) and passes(pass_at_1, pass_at_1) and not passes(pass_at_1, "exact_match")
    assert not passes() and not is_sandboxed({}) and not is_sandboxed({"metric_list": None})
    assert not passes("/folder/my_code_tasks.pass_at_1")
    assert not passes(pass_at_1, process_results=print)  # which takes the place of the metrics


def test_programs_pass_with_their_tests():
    assert pass_at_1([TESTS], [RIGHT]) == 1
    assert pass_at_1(TESTS, [WRONG]) == 0
    assert pass_at_1([TESTS, TESTS], [[RIGHT], [LEAVING]]) == 0.5


def test_pass_at_k_is_the_unbiased_estimate():
    scores = pass_at_k([TESTS], [[RIGHT, WRONG, LEAVING, RIGHT]], [1, 2, 4, 8])
    # Two right and two wrong programs make six pairs, one of them without a right one.
    assert scores == {"pass@1": 0.5, "pass@2": pytest.approx(5 / 6), "pass@4": 1.0}
    assert pass_at_k([TESTS], [[WRONG]], 1) == {"pass@1": 0.0}


@pytest.mark.usefixtures("_in_datasets", "_few_tasks")
@pytest.mark.parametrize("name", ["humaneval", "humaneval_instruct", "mbpp", "mbpp_instruct"])
def test_the_harness_builds_and_scores_our_tasks(name):
    task = make_task_manager().load([name])["tasks"][name]
    assert task.UNSAFE_CODE and is_sandboxed({"metric_list": task.get_config("metric_list")})
    doc = list(task.test_docs())[0]
    right = doc["prompt"] + doc["canonical_solution"] if "prompt" in doc else doc["code"]
    (right_score,) = task.process_results(doc, [[right]]).values()
    (wrong_score,) = task.process_results(doc, [[right + "\nraise SystemExit(0)"]]).values()
    assert (right_score, wrong_score) == (1, 0)
