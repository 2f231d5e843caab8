# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What is checked before a run begins."""

import pytest

from hf_dparallel.harness.code_tasks import TASKS_FOLDER
from hf_dparallel.harness.selection import load_tasks, make_task_manager, select_tasks


pytestmark = pytest.mark.usefixtures("_few_tasks")

UNSAFE_GROUP = """
group: mixed
task: [gsm8k, {task: mbpp, num_fewshot: 0}]
"""
UNSAFE_TASK = """
task: dangerous
dataset_path: json
unsafe_code: true
output_type: generate_until
"""


@pytest.fixture
def manager(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "mixed.yaml").write_text(UNSAFE_GROUP)
    (folder / "dangerous.yaml").write_text(UNSAFE_TASK)
    return make_task_manager(str(folder))


def test_names_and_patterns_are_found(manager):
    found = ["gsm8k", "minerva_math_prealgebra", "minerva_math_precalc"]
    assert select_tasks(manager, ["gsm8k", "minerva_math_pre*"], False) == found
    with pytest.raises(ValueError, match="Did you mean `gsm8k_cot_zeroshot`"):
        select_tasks(manager, ["gsm8k_cot_zero"], False)


@pytest.mark.parametrize("name", ["humaneval", "mbpp_instruct", "dangerous"])
def test_programs_are_not_run_without_permission(manager, name):
    with pytest.raises(ValueError, match="Add --allow_code_execution"):
        select_tasks(manager, ["gsm8k", name], False)


@pytest.mark.usefixtures("_in_datasets")
def test_programs_of_a_group_are_not_run_without_permission(manager):
    assert select_tasks(manager, ["mixed"], False) == ["mixed"]
    with pytest.raises(ValueError, match="mbpp: these tasks execute.*Add --allow_code_execution"):
        load_tasks(manager, ["mixed"], False)


def test_programs_are_not_run_without_a_sandbox(manager):
    assert select_tasks(manager, ["humaneval", "mixed"], True) == ["humaneval", "mixed"]
    with pytest.raises(ValueError, match="dangerous: these tasks execute programs without a sandbox.*mbpp_instruct"):
        select_tasks(manager, ["dangerous"], True)


INLINE_GROUP = """
group: hidden
task:
  - task: inside
    dataset_path: json
    dataset_kwargs: {data_files: {test: FILE}}
    test_split: test
    unsafe_code: true
    output_type: generate_until
    doc_to_text: "{{question}}"
    doc_to_target: "{{answer}}"
    metric_list: [{metric: exact_match}]
"""


def test_loaded_tasks_are_checked_too(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"question": "1", "answer": "2"}\n')
    (tmp_path / "hidden.yaml").write_text(INLINE_GROUP.replace("FILE", str(tmp_path / "rows.jsonl")))
    manager = make_task_manager(str(tmp_path))
    for allowed, message in ((False, "inside: these tasks.*Add --allow_code"), (True, "inside: .*without a sandbox")):
        names = select_tasks(manager, ["hidden"], allowed)
        with pytest.raises(ValueError, match=message):
            load_tasks(manager, names, allowed)


@pytest.mark.usefixtures("_in_datasets")
def test_our_tasks_can_be_loaded(manager):
    load_tasks(manager, ["mbpp", "gsm8k"], True)


def test_ours_replace_the_tasks_of_the_harness_without_a_warning_but_none_of_the_user(caplog, tmp_path):
    (tmp_path / "mine.yaml").write_text(UNSAFE_TASK.replace("dangerous", "mbpp"))
    manager = make_task_manager()
    assert manager.task_index["humaneval"].yaml_path.parent == TASKS_FOLDER
    assert "humaneval" not in caplog.text
    assert make_task_manager(str(tmp_path)).task_index["mbpp"].yaml_path.parent == tmp_path
    assert "mbpp" in caplog.text


def test_a_folder_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="include_path=nowhere. is no folder"):
        make_task_manager("nowhere")
