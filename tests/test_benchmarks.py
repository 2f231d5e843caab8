# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The figures of the bundled teacher, and scripts under benchmarks/."""

import copy
import json
import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from .test_readme import arguments_of_ours, parse_only  # noqa: F401


BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
EXPECTED = sorted((BENCHMARKS / "expected").glob("*.json"))


@pytest.fixture(scope="module")
def regression() -> dict:
    return runpy.run_path(str(BENCHMARKS / "regression.py"))


def test_there_are_expected_figures():
    assert [path.stem for path in EXPECTED] == ["teacher"]


@pytest.mark.parametrize("path", EXPECTED, ids=lambda path: path.stem)
def test_the_figures_of_the_bundled_teacher_still_come_out(regression, path):
    expected = json.loads(path.read_text())
    assert regression["deviations"](expected, regression["measure"](expected)) == []


@pytest.mark.parametrize("path", EXPECTED, ids=lambda path: path.stem)
def test_every_figure_that_is_off_is_named(regression, path):
    expected = json.loads(path.read_text())
    measured = [copy.deepcopy(row["figures"]) for row in expected["rows"]]
    assert regression["deviations"](expected, measured) == []
    for row, figures in zip(expected["rows"], measured, strict=True):
        for name, tolerance in expected["tolerances"].items():
            for wrong in (row["figures"][name] + 1.1 * tolerance, float("nan")):
                figures[name], kept = wrong, figures[name]
                (found,) = regression["deviations"](expected, measured)
                assert found.startswith(f"{name} with {row['recipe']} is {wrong}, expected {kept} ± {tolerance}")
                figures[name] = kept


def test_the_comparison_with_an_autoregressive_model_runs(monkeypatch, tmp_path, capsys):
    sizes = ["--shape", "tiny", "--batch_sizes", "2", "--prompt_lengths", "8", "--max_new_tokens", "32"]
    monkeypatch.setattr(sys, "argv", ["autoregressive.py", *sizes, "--output", str(tmp_path / "new" / "result.json")])
    # The other tests keep their threads.
    monkeypatch.setattr("torch.set_num_threads", lambda number: None)
    runpy.run_path(str(BENCHMARKS / "autoregressive.py"), run_name="__main__")
    rows = json.loads((tmp_path / "new" / "result.json").read_text())["rows"]
    assert [(row["batch_size"], row["cache"]) for row in rows] == [(2, "none"), (2, "prefix"), (2, "dual")]
    for row in rows:
        ratio = row["seconds_per_pass"] / row["llama_seconds_per_token"]
        assert row["tokens_per_pass_to_pay"] == pytest.approx(ratio) and ratio > 0
    assert "Cache: dual" in capsys.readouterr().out


def dry_run(*arguments: str, **variables: str) -> list[list[str]]:
    """The commands that reproduce.sh would run."""
    result = subprocess.run(
        ["bash", str(BENCHMARKS / "reproduce.sh"), *arguments],
        env={"PATH": os.environ["PATH"], "DRY_RUN": "1", **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    # A program in one of the commands has lines of its own, which bash quotes.
    return [shlex.split(line.replace("$'", "'")) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("model", ["llada-8b", "llada-1.5", "dream-7b"])
@pytest.mark.parametrize("variables", [{}, {"LIMIT": "4", "LAUNCH": "accelerate launch -m"}], ids=str)
def test_every_command_of_the_reproduction_parses(parse_only, tmp_path, model, variables):  # noqa: F811
    ours = [arguments_of_ours(words) for words in dry_run(model, str(tmp_path / "o ut"), **variables)]
    commands = [argv for argv in ours if argv is not None]
    assert [argv[0] for argv in commands] == ["trajectories"] * 3 + ["train"] * 2 + ["evaluate"]
    for argv in commands:
        parse_only(argv)
    # What one command writes the next ones read.
    written = [argv[argv.index("--output_dir") + 1] for argv in commands]
    assert all(path.startswith(str(tmp_path / "o ut")) for path in written)
    for flag, folder in (("--adapter", written[3]), ("--consistency_adapter", written[4])):
        assert commands[5][commands[5].index(flag) + 1] == folder


def test_an_interrupted_reproduction_goes_on(tmp_path):
    (tmp_path / "student" / "checkpoint-5").mkdir(parents=True)
    trainings = [words for words in dry_run("llada-8b", str(tmp_path)) if "--dataset_name" in words]
    assert [words[-2:] == ["--resume_from_checkpoint", "true"] for words in trainings] == [True, False]


def test_an_unknown_model_is_refused(tmp_path):
    command = ["bash", str(BENCHMARKS / "reproduce.sh"), "llada-9b", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2 and "choose llada-8b, llada-1.5 or dream-7b" in result.stderr
