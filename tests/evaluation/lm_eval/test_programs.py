# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The harness's tasks that execute programs, and what is checked before a run begins."""

import shutil

import pytest

from hf_dparallel.evaluation.lm_eval.programs import SandboxedCodeEval, code_of
from hf_dparallel.evaluation.lm_eval.run import TaskRunner
from hf_dparallel.evaluation.lm_eval.sandbox import SandboxUnavailableError

from .helpers import needs_bubblewrap


pytestmark = pytest.mark.usefixtures("_few_tasks")

RIGHT, WRONG, LEAVING = "def f(x):\n    return 2 * x", "def f(x):\n    return x", "raise SystemExit(0)"
GROUP = "group: mixed\ntask: [gsm8k, {task: mbpp, num_fewshot: 0}]\n"
OWN = """
task: dangerous
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
unsafe_code: true
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: exact_match}]
"""


@needs_bubblewrap
def test_pass_at_k_is_the_unbiased_estimate():
    scores, _ = SandboxedCodeEval().compute(["assert f(2) == 4"], [[RIGHT, WRONG, LEAVING, RIGHT]], [1, 2, 4, 8])
    # Two right and two wrong programs make six pairs, one of them without a right one.
    assert scores == {"pass@1": 0.5, "pass@2": pytest.approx(5 / 6), "pass@4": 1.0}


@pytest.fixture
def runner(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"question": "1", "answer": "2"}\n')
    (tmp_path / "dangerous.yaml").write_text(OWN.replace("FILE", str(tmp_path / "rows.jsonl")))
    (tmp_path / "mixed.yaml").write_text(GROUP)
    return TaskRunner("tiny", str(tmp_path))


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (f"{RIGHT}\n```", f"{RIGHT}\n"),
        (f"\n{RIGHT}\n```\nThis doubles x.\n```\nf(2)\n```", f"\n{RIGHT}\n"),  # a template has trimmed the prompt
        (f"import math\n\n{RIGHT}", f"import math\n\n{RIGHT}"),  # cut at the end of the canvas
        (f"```python\n{RIGHT}\n```", f"{RIGHT}\n"),
        (f"\n```\n{RIGHT}", RIGHT),
        (f"python\n{RIGHT}\n```", f"{RIGHT}\n"),
        ("```", ""),
        ("", ""),
    ],
)
def test_the_program_is_the_rest_of_the_block_that_the_prompt_opens(answer, code):
    assert code_of(answer) == code


@needs_bubblewrap
@pytest.mark.usefixtures("_in_datasets")
@pytest.mark.parametrize("name", ["mbpp_instruct", "humaneval_instruct"])
@pytest.mark.parametrize("form", ["{}\n```", "\n{}\n```\nDone.", "{}", "```python\n{}\n```"])
def test_right_answers_of_every_form_are_right(runner, name, form):
    runner.load([name])
    task = runner.task_manager.load([name])["tasks"][name]
    doc = list(task.test_docs())[0]
    answer = form.format(doc["code"] if "code" in doc else doc["prompt"] + doc["canonical_solution"])
    (programs,) = task._filters[0].filters[0]().apply([[answer]], [doc])
    assert list(task.process_results(doc, [programs]).values()) == [1]


@needs_bubblewrap
@pytest.mark.usefixtures("_in_datasets")
@pytest.mark.parametrize("name", ["humaneval", "humaneval_instruct", "mbpp", "mbpp_instruct"])
def test_the_tasks_of_the_harness_run_programs_in_the_sandbox(runner, name):
    assert runner.load([name]) == [name]
    task = runner.task_manager.load([name])["tasks"][name]
    doc = list(task.test_docs())[0]
    right = doc["prompt"] + doc["canonical_solution"] if "prompt" in doc else doc["code"]
    (right_score,) = task.process_results(doc, [[right]]).values()
    (wrong_score,) = task.process_results(doc, [[right + "\nraise SystemExit(0)"]]).values()
    assert (right_score, wrong_score) == (1, 0)


@pytest.mark.usefixtures("_in_datasets")
def test_where_bubblewrap_is_missing_programs_run_only_if_that_is_confirmed(runner, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert runner.load(["gsm8k"]) == ["gsm8k"]
    for name in ("humaneval", "mixed"):
        with pytest.raises(SandboxUnavailableError, match="which is missing. Install it .*--confirm_run_unsafe_code"):
            runner.load([name])
    # In its own way, which downloads a metric.
    monkeypatch.setattr("hf_dparallel.evaluation.lm_eval.run.use_sandbox", lambda: pytest.fail("uses the sandbox"))
    runner.confirm_run_unsafe_code = True
    assert runner.load(["dangerous"]) == ["dangerous"]


def test_tasks_with_a_way_of_their_own_to_run_programs_need_a_confirmation(runner):
    with pytest.raises(ValueError, match="dangerous: these tasks run programs .* add --confirm_run_unsafe_code"):
        runner.load(["dangerous"])


@pytest.mark.usefixtures("_in_datasets")
def test_names_and_patterns_are_found(runner):
    assert runner.load(["gsm8k", "minerva_math_prealg*"]) == ["gsm8k", "minerva_math_prealgebra"]
    with pytest.raises(ValueError, match="There is no task 'gsm8k_cot_zero'. `lm_eval ls tasks` lists them."):
        runner.load(["gsm8k", "gsm8k_cot_zero"])
    with pytest.raises(ValueError, match="include_path=nowhere. is no folder"):
        TaskRunner("tiny", "nowhere")
