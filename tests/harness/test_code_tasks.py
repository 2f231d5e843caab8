# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The harness's tasks that execute programs, with our metric."""

import pytest
from lm_eval.tasks._yaml_loader import load_yaml

from hf_dparallel.harness import code_tasks
from hf_dparallel.harness.code_tasks import (
    TASKS_FOLDER,
    complete_from_chat,
    extract_from_chat,
    harness_config,
    pass_at_1,
    pass_at_k,
)
from hf_dparallel.harness.selection import make_task_manager

from .conftest import HARNESS_TASKS


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


@pytest.mark.parametrize("name", NAMES)
def test_nothing_but_functions_differs_from_the_files_of_the_harness(name):
    original = load_yaml(HARNESS_TASKS / name.split("_")[0] / f"{name}.yaml", resolve_func=False)
    functions = []

    def same(ours, theirs):
        if callable(ours):
            functions.append(ours.__name__)
            return theirs.endswith(f"/utils.{ours.__name__}")
        if isinstance(ours, dict):
            return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in ours)
        if isinstance(ours, list):
            return len(ours) == len(theirs) and all(map(same, ours, theirs))
        return ours == theirs

    config = harness_config(name)
    assert same(config, original)
    assert config["metric_list"][0]["metric"] in (pass_at_1, pass_at_k)
    assert any("pass_at" in function for function in functions)


def test_the_code_that_downloads_the_metric_of_the_harness_is_not_run(monkeypatch):
    monkeypatch.setattr("evaluate.load", lambda *args: pytest.fail("downloads code"))
    functions = code_tasks._harmless_functions(HARNESS_TASKS / "mbpp" / "utils.py")
    assert len(functions["list_fewshot_samples"]()) == 3
    assert functions["build_predictions"]([["\nx\n```"]], [{}]) == [["x"]]


def test_programs_pass_with_their_tests():
    assert pass_at_1([TESTS], [RIGHT]) == 1
    assert pass_at_1(TESTS, [WRONG]) == 0
    assert pass_at_1([TESTS, TESTS], [[RIGHT], [LEAVING]]) == 0.5


def test_pass_at_k_is_the_unbiased_estimate():
    scores = pass_at_k([TESTS], [[RIGHT, WRONG, LEAVING, RIGHT]], [1, 2, 4, 8])
    # Of the six pairs of two right and two wrong programs one has no right one.
    assert scores == {"pass@1": 0.5, "pass@2": pytest.approx(5 / 6), "pass@4": 1.0}
    assert pass_at_k([TESTS], [[WRONG]], 1) == {"pass@1": 0.0}


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("Here:\n```python\na = 1\n```\nand\n```\nb\n```", "a = 1\n"),
        ("```\na = 1\n", "a = 1\n"),
        ("    return 1", None),
    ],
)
def test_programs_are_found_in_chats(answer, code):
    doc = {"prompt": "def f():\n"}
    completed = "def f():\n" + answer if code is None else f"def f():\n\n{code}"
    assert complete_from_chat([[answer]], [doc]) == [[completed]]
    assert extract_from_chat([[answer]], [doc]) == [[code or answer]]


@pytest.mark.usefixtures("_in_datasets", "_few_tasks")
@pytest.mark.parametrize("name", ["humaneval", "humaneval_instruct", "mbpp", "mbpp_instruct"])
def test_the_harness_builds_and_scores_our_tasks(name):
    task = make_task_manager().load([name])["tasks"][name]
    assert task.UNSAFE_CODE and isinstance(task, code_tasks.SandboxedCodeTask)
    doc = list(task.test_docs())[0]
    right = doc["prompt"] + doc["canonical_solution"] if "prompt" in doc else doc["code"]
    (right_score,) = task.process_results(doc, [[right]]).values()
    (wrong_score,) = task.process_results(doc, [[right + "\nraise SystemExit(0)"]]).values()
    assert (right_score, wrong_score) == (1, 0)
