# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The harness's tasks that execute programs."""

from types import SimpleNamespace

import pytest
from lm_eval import tasks
from lm_eval.evaluator import evaluate

from hf_dparallel.evaluation.lm_eval import programs, sandbox
from hf_dparallel.evaluation.lm_eval.programs import SandboxedCodeEval, code_of

from .helpers import make_lm, needs_bubblewrap


pytestmark = pytest.mark.usefixtures("_few_tasks")

RIGHT, WRONG, LEAVING = "def f(x):\n    return 2 * x", "def f(x):\n    return x", "raise SystemExit(0)"


@needs_bubblewrap
def test_pass_at_k_is_the_unbiased_estimate():
    scores, _ = SandboxedCodeEval().compute(["assert f(2) == 4"], [[RIGHT, WRONG, LEAVING, RIGHT]], [1, 2, 4, 8])
    # Two right and two wrong programs make six pairs, one of them without a right one.
    assert scores == {"pass@1": 0.5, "pass@2": pytest.approx(5 / 6), "pass@4": 1.0}


def load_task(name: str):
    """A task of the harness, after a model of ours was made."""
    make_lm()
    return tasks.TaskManager().load([name])["tasks"][name]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (f"{RIGHT}\n```", f"{RIGHT}\n"),
        (f"\n{RIGHT}\n```\nThis doubles x.\n```\nf(2)\n```", f"\n{RIGHT}\n"),  # a template has trimmed the prompt
        (f"import math\n\n{RIGHT}", f"import math\n\n{RIGHT}"),  # cut at the end of the canvas
        (f"```python\n{RIGHT}\n```", f"{RIGHT}\n"),
        (f"\n```\n{RIGHT}", RIGHT),
        (f"python\n{RIGHT}\n```", f"{RIGHT}\n"),
        (f"Here it is:\n```python\n{RIGHT}\n```\nThis doubles x.", f"{RIGHT}\n"),
        (f"Solution\n\n``` Python\n{RIGHT}", RIGHT),
        (f"Sure! For example:\n```\nf(2)\n```\nis 4 with\n```py\n{RIGHT}\n```", f"{RIGHT}\n"),
        (f"Python\n{RIGHT}\n```", f"{RIGHT}\n"),
        ("def f(x):\n    return (\n```\nI mean 3.\n```", "def f(x):\n    return (\n"),  # wrong, and no sentence
        ("```", ""),
        ("", ""),
    ],
)
def test_the_program_is_the_rest_of_the_block_that_the_prompt_opens(answer, code):
    assert code_of(answer) == code


def test_a_body_continues_the_function_of_the_prompt():
    prompt = "def f(x):\n"
    assert code_of("    return 2 * x\n```\nDone.", prompt) == "    return 2 * x\n"
    assert code_of("Its body is:\n```python\n    return 2 * x\n```", prompt) == "    return 2 * x\n"


@needs_bubblewrap
@pytest.mark.usefixtures("_in_datasets")
@pytest.mark.parametrize("name", ["mbpp_instruct", "humaneval_instruct"])
@pytest.mark.parametrize(
    "form", ["{}\n```", "\n{}\n```\nDone.", "{}", "```python\n{}\n```", "Here it is:\n```python\n{}\n```\nDone."]
)
def test_right_answers_of_every_form_are_right(name, form):
    task = load_task(name)
    doc = list(task.test_docs())[0]
    answer = form.format(doc["code"] if "code" in doc else doc["prompt"] + doc["canonical_solution"])
    (programs,) = task._filters[0].filters[0]().apply([[answer]], [doc])
    assert list(task.process_results(doc, [programs]).values()) == [1]


@needs_bubblewrap
@pytest.mark.usefixtures("_in_datasets")
@pytest.mark.parametrize("name", ["humaneval", "humaneval_instruct", "mbpp", "mbpp_instruct"])
def test_the_tasks_of_the_harness_run_programs_in_the_sandbox(name):
    task = load_task(name)
    doc = list(task.test_docs())[0]
    right = doc["prompt"] + doc["canonical_solution"] if "prompt" in doc else doc["code"]
    (right_score,) = task.process_results(doc, [[right]]).values()
    (wrong_score,) = task.process_results(doc, [[right + "\nraise SystemExit(0)"]]).values()
    assert (right_score, wrong_score) == (1, 0)


@pytest.mark.usefixtures("_in_datasets")
def test_programs_run_only_if_that_is_confirmed():
    with pytest.raises(ValueError, match="confirm_run_unsafe_code=True"):
        evaluate(make_lm(), {"tasks": {"humaneval": load_task("humaneval")}})


def test_where_bubblewrap_is_missing_the_metric_of_the_harness_runs_them(monkeypatch):
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
    monkeypatch.setattr(programs, "has_sandbox", programs.has_sandbox.__wrapped__)
    metric = SimpleNamespace(compute=lambda references, predictions, k: (predictions, k))
    monkeypatch.setattr("evaluate.load", {"code_eval": metric}.__getitem__)
    assert SandboxedCodeEval().compute(["assert f(2) == 4"], [[RIGHT]], [1]) == ([[RIGHT]], [1])
