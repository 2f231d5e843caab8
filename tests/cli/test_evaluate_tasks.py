# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel evaluate --tasks`, and the harness's own command with our model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..evaluation.lm_eval.helpers import DATASETS
from ..helpers import read_json, read_jsonl, save_two_students, write_jsonl
from ..processes import run_in_two_processes


TASK = """
task: counting
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["."], do_sample: false, max_gen_toks: 13}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
"""
CHOICE = """
task: choosing
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_target: 0
doc_to_choice: ["1", "2 3"]
"""
DECODING = ["--block_length", "8", "--entropy_threshold", "1.0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A checkpoint, two adapters, and two tasks of a user."""
    folder = tmp_path_factory.mktemp("harness")
    save_two_students(folder)
    rows = [{"question": f"{n} 5 {n + 1}", "answer": "7"} for n in range(6)]
    questions = write_jsonl(folder / "questions.jsonl", rows)
    (folder / "tasks").mkdir()
    for name, text in (("counting", TASK), ("choosing", CHOICE)):
        (folder / "tasks" / f"{name}.yaml").write_text(text.replace("FILE", questions))
    return folder


@pytest.fixture
def evaluate(hf):
    """Runs `hf-dparallel evaluate`; returns the exit code, stdout and the last line of stderr."""

    def run(*argv):
        code, out, err = hf("evaluate", *argv)
        return code, out, err.strip().splitlines()[-1] if err.strip() else ""

    return run


@pytest.fixture
def on_tasks(evaluate, folder):
    def run(*argv):
        return evaluate("--model", folder / "base", "--include_path", folder / "tasks", *argv)

    return run


@pytest.mark.usefixtures("_few_tasks")
def test_tasks_are_measured(on_tasks, tmp_path):
    argv = ["--tasks", "counting", *DECODING, "--output_dir", tmp_path, "--json", "figures.json"]
    code, out, _ = on_tasks(*argv)
    assert code == 0 and "|exact_match" in out and "answer_tokens_per_forward" in out
    figures = read_json("figures.json")
    (samples,) = tmp_path.glob("*/samples_counting_*.jsonl")
    rows = read_jsonl(samples)
    averaged = ("nfe", "num_tokens", "num_answer_tokens", "tokens_per_forward", "row_latency_s")
    means = {name: sum(row[name] for row in rows) / 6 for name in averaged}
    means["answer_tokens_per_forward"] = means["num_answer_tokens"] / means["nfe"]
    scores = figures["results"]["counting"]
    assert {name: scores[f"{name},none"] for name in means} == pytest.approx(means)


@pytest.mark.usefixtures("_few_tasks")
def test_figures_do_not_depend_on_the_batch_size(on_tasks):
    reports = []
    for batch_size in (1, 4):
        argv = ["--tasks", "counting,choosing", "--temperature", "1.5", "--mc_num", "8", "--json", "figures.json"]
        assert on_tasks(*argv, *DECODING, "--batch_size", batch_size)[0] == 0
        reports.append(read_json("figures.json")["results"])
    assert reports[0]["counting"]["nfe,none"] == reports[1]["counting"]["nfe,none"]
    assert reports[0]["counting"]["num_tokens,none"] == reports[1]["counting"]["num_tokens,none"]
    assert reports[0]["choosing"] == reports[1]["choosing"] and "acc,none" in reports[0]["choosing"]


@pytest.mark.usefixtures("_few_tasks")
def test_arguments_can_come_from_a_file(on_tasks, tmp_path):
    (tmp_path / "run.yaml").write_text("tasks: counting\nblock_length: 8\nlimit: 2\nmax_new_tokens: 8\n")
    code, _, _ = on_tasks("--config", tmp_path / "run.yaml", "--json", "figures.json")
    figures = read_json("figures.json")
    assert code == 0 and figures["settings"] == {"block_length": 8, "max_new_tokens": 8}
    assert figures["results"]["counting"]["nfe,none"] == 8


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        ("--tasks countin", 1, "no task 'countin'. `lm_eval ls tasks` lists them."),
        ("--tasks counting --dataset demo", 2, "`dataset` and `tasks` are both given"),
        ("--tasks counting --sweep denoising_steps=4,8", 2, "`sweep` and `tasks` are both given"),
        ("--tasks counting --mc_num 0", 2, "'--mc_num': 0 is not in the range x>="),
        ("--tasks counting --num_fewshot -1", 2, "'--num_fewshot': -1 is not in the range x>="),
        ("--tasks counting --limit 0", 2, "'--limit': 0.0 is not in the range x>0"),
        ("--tasks counting --include_path nowhere", 1, "`include_path=nowhere` is no folder"),
    ],
)
@pytest.mark.usefixtures("_few_tasks")
def test_mistakes_are_named_before_the_model_is_loaded(on_tasks, monkeypatch, argv, code, message):
    monkeypatch.setattr("hf_dparallel_cli.loading.load_model", lambda options: pytest.fail("loads the model"))
    result, _, last_line = on_tasks(*argv.split())
    assert result == code and message in last_line


@pytest.mark.usefixtures("_few_tasks")
def test_a_temperature_draws(on_tasks, tmp_path):
    assert on_tasks("--tasks", "counting", *DECODING, "--temperature", "2.0", "--output_dir", tmp_path)[0] == 0
    on_tasks("--tasks", "counting", *DECODING, "--output_dir", tmp_path / "likeliest")
    drawn, likeliest = (
        [row["resps"] for row in read_jsonl(*folder.glob("*/samples_*"))]
        for folder in (tmp_path, tmp_path / "likeliest")
    )
    assert drawn != likeliest


_COMMAND = """
import sys
from hf_dparallel_cli import main

sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow  # two processes, and each imports the harness
@pytest.mark.usefixtures("_few_tasks")
def test_two_processes_share_the_samples(on_tasks, folder, tmp_path):
    argv = ["--tasks", "counting,choosing", "--mc_num", "8", "--max_new_tokens", "16", *DECODING]
    assert on_tasks(*argv, "--json", tmp_path / "alone.json")[0] == 0
    argv += ["--model", folder / "base", "--include_path", folder / "tasks", "--output_dir", tmp_path]
    run_in_two_processes(_COMMAND, "evaluate", *argv, "--json", tmp_path / "together.json")
    together, alone = (read_json(f"{name}.json")["results"] for name in ("together", "alone"))
    for scores in (together["counting"], alone["counting"]):
        del scores["row_latency_s,none"]
    assert together == alone


@pytest.mark.slow  # the harness looks through its 15 thousand files
@pytest.mark.parametrize("task", ["counting", "humaneval"])
def test_the_command_of_the_harness_finds_the_model(folder, tmp_path, task):
    program = [sys.executable, "-m", "hf_dparallel.evaluation.lm_eval", "--model", "hf-dparallel", "--log_samples"]
    settings = f"pretrained={folder / 'base'},adapter={folder / 'dparallel'},block_length=8,max_new_tokens=16"
    argv = [
        "--model_args",
        settings,
        "--tasks",
        task,
        "--include_path",
        folder / "tasks",
        "--device",
        "cpu",
        "--limit",
        "1",
    ]
    argv += ["--output_path", tmp_path, "--gen_kwargs", "entropy_threshold=1.0,max_new_tokens=16"]
    argv += ["--confirm_run_unsafe_code"] if task == "humaneval" else []
    done = subprocess.run(
        [*program, *map(str, argv)],
        capture_output=True,
        text=True,
        cwd=DATASETS,
        env=os.environ | {"HF_DATASETS_CACHE": str(tmp_path / "cache")},
    )
    assert done.returncode == 0, done.stderr
    assert f"|{task}" in done.stdout
    (results,) = tmp_path.rglob("results_*.json")
    assert 0 < read_json(results)["config"]["decoding_cost"][task]["nfe"] <= 16
