# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""docs/make_a_teacher.md: its commands, one after the other on fewer rows, and what its two files set."""

import runpy
import sys

import pytest
import yaml
from peft import PeftModel
from transformers import AutoModelForMaskedLM

from hf_dparallel_cli import main
from hf_dparallel_cli.training import read_arguments

from .helpers import read_json
from .pages import ROOT, read, run_blocks, shell_commands


EXAMPLE = ROOT / "examples" / "make_a_teacher"
PAGE = "docs/make_a_teacher.md"
# What makes each command of the page one of seconds. An untrained model has no right answer.
FEWER = {
    "python": ["--num_steps", "1", "--num_rows", "40"],
    "convert": [],
    "train": ["--max_steps", "1"],
    "trajectories": ["--num_samples", "8", "--reward", "none"],
    "calibrate": ["--num_samples", "8", "--max_accuracy_drop", "0.9", "--sweep", "entropy_threshold=5.0"],
    "evaluate": ["--num_samples", "4"],
}


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """The commands of the page in an empty folder, by name, each with what it takes to be fast."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    found = shell_commands(PAGE)
    return [(words[0] if words[0] == "python" else words[1], words) for words in found]


def run(name, words, *more):
    if name == "python":
        sys.argv = [*words[1:], *FEWER[name]]
        runpy.run_path(words[1], run_name="__main__")
    else:
        assert main([*words[1:], *FEWER[name], *more]) == 0, words


@pytest.mark.slow
def test_the_commands_of_the_page_run(commands, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [])
    assert [name for name, _ in commands] == ["python", "convert", "train", "trajectories", "train", *list(FEWER)[4:]]
    for name, words in commands:
        run(name, words)
    student = AutoModelForMaskedLM.from_pretrained(tmp_path / "runs" / "student")
    assert (student.attention, student.config.block_length) == ("block_causal", 16)
    assert student.generation_config.entropy_threshold == 5.0
    run_blocks(PAGE, {"Qwen/Qwen3-0.6B": "runs/roman/base"})
    assert AutoModelForMaskedLM.from_pretrained("start").config.block_length == 32
    # An adapter, under full attention.
    _, convert, train = [words for _, words in commands][:3]
    run("convert", convert[: convert.index("--block_length")], "--output_dir", "full")
    full = [word.replace("block_causal", "full") for word in train]
    run("train", full, "--model", "full", "--output_dir", "adapter", "--use_peft")
    model = AutoModelForMaskedLM.from_pretrained("full")
    assert model.attention == "full" and PeftModel.from_pretrained(model, "adapter")
    settings = read_json("adapter/training_summary.json")["settings"]
    assert settings.items() >= {"masking": "random", "mask_ratio": "random", "certainty_weight": 0.0}.items()


@pytest.mark.parametrize("attention", ["full", "block_causal"])
def test_the_presets_are_masked_diffusion(attention):
    path = EXAMPLE / f"{attention}.yaml"
    flags = ["--model", "demo", "--dataset", "data", "--output_dir", "teacher", "--use_cpu", "--bf16", "false"]
    _, training, _ = read_arguments(["--config", str(path), *flags])
    assert (training.certainty_weight, training.mask_ratio, training.complementary_masking) == (0.0, "random", False)
    assert training.masking == ("random" if attention == "full" else "semi_autoregressive")
    # The two differ in nothing else.
    both = [yaml.safe_load((EXAMPLE / f"{name}.yaml").read_text()) for name in ("full", "block_causal")]
    assert {name for name in both[0] if both[0][name] != both[1][name]} == {"masking"}


def test_the_benchmark_chooses_thresholds_on_one_half_and_reports_the_other():
    def rows(*points):
        return [{"method": name, "accuracy": accuracy, "nfe": nfe} for name, accuracy, nfe in points]

    compare = runpy.run_path(str(ROOT / "benchmarks" / "make_a_teacher.py"))["compare"]
    one = ("denoising_steps 48", 0.9, 48.0)
    bold, careful = ("entropy_threshold 0.5", 0.5, 4.0), ("entropy_threshold 0.1", 0.9, 9.0)
    tried = {"tuning": rows(one, bold, careful), "reported": rows(one, ("entropy_threshold 0.1", 0.8, 10.0))}
    found = compare(tried, tried)["rows"]
    assert {title: row["nfe"] for title, row in found.items()} == {
        "Teacher, one token per pass": 48.0,
        "Teacher, entropy threshold 0.1": 10.0,
        "Student, entropy threshold 0.1": 10.0,
    }


def test_the_table_is_what_the_benchmark_wrote():
    table = runpy.run_path(str(ROOT / "benchmarks" / "make_a_teacher.py"))["table"]
    report = read_json(ROOT / "benchmarks" / "results" / "make_a_teacher.json")
    assert f"-->\n{table(report)}\n<!--" in read("docs/results.md")
    assert all(row["num_prompts"] >= 300 for row in report["full"]["rows"].values())
