# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The figures of the bundled teacher, and scripts under benchmarks/."""

import copy
import importlib
import json
import math
import os
import runpy
import shlex
import subprocess
import sys
from itertools import islice
from pathlib import Path

import certainty
import pytest
import torch
from examples.paper import __main__ as paper
from speed import Machine

from hf_dparallel.exact import draft_length
from hf_dparallel.training.objective import TokenTerms
from hf_dparallel.training.window_collator import WindowCollator

from .helpers import make_llada
from .pages import arguments_of_ours, parse_only


BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
REPRODUCE = BENCHMARKS.parent / "examples" / "paper" / "reproduce.sh"
EXPECTED = BENCHMARKS / "expected" / "teacher.json"


@pytest.fixture(scope="module")
def regression() -> dict:
    return runpy.run_path(str(BENCHMARKS / "regression.py"))


# The first recipe takes as many passes as all others.
@pytest.mark.parametrize("first", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_the_figures_of_the_bundled_teacher_still_come_out(regression, first):
    expected = json.loads(EXPECTED.read_text())
    expected["rows"] = expected["rows"][first:]
    assert regression["deviations"](expected, regression["measure"](expected)) == []


def test_every_figure_that_is_off_is_named(regression):
    expected = json.loads(EXPECTED.read_text())
    measured = [copy.deepcopy(row["figures"]) for row in expected["rows"]]
    assert regression["deviations"](expected, measured) == []
    for name, tolerance in expected["tolerances"].items():
        kept = measured[0][name]
        for wrong in (kept + 1.1 * tolerance, float("nan")):
            measured[0][name] = wrong
            (found,) = regression["deviations"](expected, measured)
            assert found.startswith(f"{name} with ") and f" is {wrong}, expected {kept} ± {tolerance}" in found
        measured[0][name] = kept


TINY = ["--shapes", "tiny", "tiny-sdar", "--llama", "tiny-llama", "--batch_sizes", "1", "--prompt_lengths", "8"]
TINY += ["--max_new_tokens", "32", "--repeats", "1", "--device", "cpu", "--dtype", "float32"]
# Not on a machine that is lent for its GPU.
NOT_THERE = ("trl", "datasets", "evaluate", "lm_eval", "gradio", "ray", "llguidance", "starlette", "click")


@pytest.fixture
def gpu_kit(monkeypatch, tmp_path, capsys):
    """Calls benchmarks/gpu.py with a folder for results and returns what it prints."""
    machine = Machine(bandwidth=1e9, flops=1e9)
    monkeypatch.setattr("speed.measure_machine", lambda dtype, device: machine)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    monkeypatch.setattr("torch.compile", lambda function=None, **kwargs: function)

    def call(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["gpu.py", "--output_dir", str(tmp_path), *TINY, *arguments])
        runpy.run_path(str(BENCHMARKS / "gpu.py"), run_name="__main__")
        return capsys.readouterr().out

    return call


def cells_of(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]


def rows_of(path: Path) -> list[dict]:
    return json.loads(path.read_text())["rows"]


def test_the_gpu_kit_measures_and_makes_tables(gpu_kit, tmp_path):
    gpu_kit()
    gpu_kit("--stages", "sizes-tiny-sdar", "--batch_sizes", "1", "2")
    rows = {path.stem: rows_of(path) for path in tmp_path.glob("*.json")}
    assert list(rows) and "error" not in json.dumps(rows)
    ways = {
        name: [(row["cache"], row["compiled"]) for row in rows[f"decode-{name}"]] for name in ("tiny", "tiny-sdar")
    }
    assert ways["tiny"] == [(cache, compiled) for compiled in (False, True) for cache in ("none", "prefix", "dual")]
    assert ways["tiny-sdar"] == [(cache, compiled) for compiled in (False, True) for cache in ("none", "block")]
    adapted = [(row["adapter"], row["compiled"]) for row in rows["adapter-tiny"]]
    assert adapted == [("unmerged", False), ("unmerged", True), ("merged", False), ("merged", True)]
    assert {(row["compiled"], row["passes"], row["tokens_per_pass"]) for row in rows["exact-tiny-llama"]} == {
        (False, 9, 32 / 9),
        (True, 9, 32 / 9),
    }
    assert [row["activation_checkpointing"] for row in rows["train-tiny"]] == [False, True]
    sizes = [(row["batch_size"], row["cache"], row["compiled"]) for row in rows["sizes-tiny-sdar"]]
    assert sizes == [(2, "none", False), (2, "block", False), (2, "block", True)]
    assert len(rows) == 7 and all(row["device"] and row["took_s"] > 0 for stage in rows.values() for row in stage)

    before = {path: path.read_text() for path in tmp_path.glob("*.json")}
    gpu_kit()
    assert {path: path.read_text() for path in tmp_path.glob("*.json")} == before

    by_line = {tuple(cells[:5]): cells for cells in cells_of(gpu_kit("--table"))}
    dual, none = (rows["decode-tiny"][number] for number in (2, 0))
    cells = by_line["tiny", "dual", "none", "8", "1"]
    assert cells[7:9] == [f"{dual['ms_per_pass']:.2f}", f"{1 / dual['part_of_floor']:.2f}"]
    assert cells[9] == f"{none['tokens_per_s'] / dual['tokens_per_s']:.2f}"
    assert by_line["tiny", "none", "merged", "8", "1"][0] and by_line["tiny-sdar", "block", "none", "8", "2"][0]
    exact, llama = rows["exact-tiny-llama"][1], rows["llama-tiny-llama"][0]
    times = exact["tokens_per_s"] / llama["tokens_per_s"]
    assert by_line["True", "tiny-llama", "8", "1", "3.56"][6:] == [f"{times:.2f}", f"{times * 9 / 32:.2f}"]


@pytest.mark.slow
def test_the_gpu_kit_goes_on_where_it_was_broken_off(gpu_kit, tmp_path):
    path = tmp_path / "decode-tiny.json"
    gpu_kit("--stages", "decode-tiny")
    whole = json.loads(path.read_text())
    for row in whole["rows"]:
        row["ms_per_pass"] = 0.0
    begun = whole["begun"]
    # Killed twice in the third row.
    broken = whole | {"rows": whole["rows"][:2], "begun": [*begun[:3], begun[2]], "is_complete": False}
    path.write_text(json.dumps(broken))
    path.with_suffix(".new").write_text('{"rows": [')
    gpu_kit("--stages", "decode-tiny", "--seconds", "0")
    gpu_kit("--stages", "decode-tiny", "--seconds", "30")
    assert json.loads(path.read_text()) == broken | {"rows": rows_of(path)}
    # Compiled rows may take longer than that.
    assert [row.get("error") for row in rows_of(path)] == [None, None, "begun twice and never ended"]
    gpu_kit("--stages", "decode-tiny")
    assert [row.get("ms_per_pass") == 0 for row in rows_of(path)] == [True, True, False, False, False, False]
    assert json.loads(path.read_text())["is_complete"]

    path.write_text('{"rows": [')
    assert "decode-tiny.json.broken" in gpu_kit("--stages", "decode-tiny") and len(rows_of(path)) == 6
    # Another device has rows of its own.
    path.write_text(path.read_text().replace(rows_of(path)[0]["device"], "another"))
    gpu_kit("--stages", "decode-tiny")
    assert len(rows_of(path)) == 12 and gpu_kit("--table").count("computes 0 TFLOP/s") == 2


def test_the_gpu_kit_goes_past_what_fails(gpu_kit, tmp_path, monkeypatch):
    gpu_kit("--stages", "[de]*-tiny*", "--prompt_lengths", "-1")
    for name in ("decode-tiny", "decode-tiny-sdar", "exact-tiny-llama"):
        rows = rows_of(tmp_path / f"{name}.json")
        assert len(rows) == len([row for row in rows if "error" in row]) > 1
    assert gpu_kit("--table").count("Not measured: ") == 6 + 4 + 2

    def fail(*arguments):
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr("speed._profile", fail)
    gpu_kit("--stages", "adapter-tiny")
    assert [row["ms_per_pass"] > 0 for row in rows_of(tmp_path / "adapter-tiny.json")] == [True] * 4
    assert "CUDA out of memory" in gpu_kit("--table")


@pytest.mark.slow
def test_the_gpu_kit_needs_torch_transformers_and_peft_only():
    blocked = f"import sys; sys.modules.update(dict.fromkeys({NOT_THERE})); import gpu, train; print(gpu.stages)"
    path = os.pathsep.join([str(BENCHMARKS), str(BENCHMARKS.parent / "src")])
    environment = os.environ | {"PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", blocked], env=environment, check=True, capture_output=True)


def test_decoding_is_compared_with_the_official_code(monkeypatch, capsys):
    decode = importlib.import_module("decode")
    theirs = {"seconds": 2.0, "nfe": 3, "peak_memory_mb": 1024.0, "tokens": []}
    monkeypatch.setattr(decode, "run_official", lambda model, prompt, runs, arguments: [dict(theirs) for _ in runs])
    arguments = decode.SpeedArguments(
        against="checkout", shape="tiny", passes=3, prompt_length=8, max_new_tokens=32, repeats=1
    )
    assert [row["ours"]["nfe"] for row in decode.compare(arguments)["rows"]] == [3, 3, 3]
    cells = cells_of(capsys.readouterr().out)
    assert ["prefix", "official", "False", "3", "2.00", "1024", "1.00"] in cells
    assert [row[1] for row in cells if row[:1] == ["dual"]] == ["official", "ours"]


@pytest.mark.parametrize("task", ["requests", "counting", "chat"])
def test_the_tasks_of_exact_decoding_share_no_prompt_between_splits(task):
    tasks = importlib.import_module("exact_tasks")
    prompts = {
        split: {row["prompt"][-1]["content"] for row in islice(tasks.draw_rows(task, split, 0), 60)}
        for split in tasks.SPLITS
    }
    assert not prompts["test"] & (prompts["train"] | prompts["tune"])


def outcomes_of(row: dict) -> list[dict]:
    columns = [map(int, numbers.split()) for numbers in row["outcomes"].values()]
    return [dict(zip(row["outcomes"], values, strict=True)) for values in zip(*columns, strict=True)]


def test_the_intervals_of_exact_decoding_are_those_of_its_outcomes():
    exact = importlib.import_module("exact")
    for row in json.loads((BENCHMARKS / "results" / "exact_h100.json").read_text())["check"].values():
        assert exact.interval(outcomes_of(row)) == pytest.approx(row["interval"])


def test_the_losses_are_compared_with_all_masks_in_every_pass(monkeypatch):
    losses = importlib.import_module("exact_losses")

    def of_machine(*given):
        raise AssertionError("The machine decides.")

    def count_masks(*given):
        length = draft_length.draft_length_of(make_llada(), 15)
        assert draft_length.measure_passes() == (1, 0)
        return [length.choose(num_rows, 99) for num_rows in (1, 80)]

    monkeypatch.setattr(draft_length.DraftLength, "choose", of_machine)
    monkeypatch.setattr(draft_length, "measure_passes", of_machine)
    monkeypatch.setattr("exact.decode", count_masks)
    bench = losses.Bench(losses.Arguments(output_dir=Path(os.devnull).parent))
    assert bench._decode(None, [], 0.5) == [15, 15]


def test_the_comparisons_of_losses_are_those_of_their_outcomes():
    losses = importlib.import_module("exact_losses")
    study = json.loads((BENCHMARKS / "results" / "exact_losses.json").read_text())
    rows = [row | {"outcomes": outcomes_of(row)} for row in study["rows"]]
    found = losses.compare(rows)
    assert found.keys() == study["comparisons"].keys()
    for name, pair in found.items():
        for key, value in study["comparisons"][name].items():
            assert pair[key] == pytest.approx(value)
    by_seed = {row["seed"]: row["tokens_per_pass"] for row in rows if row["loss"] == "uniform"}
    usual = {
        row["seed"]: row["tokens_per_pass"]
        for row in rows
        if (row["loss"], row["steps"]) == ("decay-0.8", 250) and row["certainty_weight"]
    }
    of_uniform = next(pair for name, pair in found.items() if name.startswith("uniform"))
    assert of_uniform["by_seed"] == pytest.approx([by_seed[seed] / usual[seed] for seed in sorted(by_seed)])


def naive_weights(loss, size, labels, probabilities, is_right):
    """Computes the weights of the masks of one window."""
    weights = []
    for place in range(size):
        accepted = []
        for last in range(place, size):
            chances = [0.9 * p + 0.1 for p in probabilities[: last + 1]]
            accepted.append(math.prod(chances) if labels[last] != -100 else 0)
        of_loss = {"uniform": 1, "decay-0.8": 0.8**place, "dpace-0.1": sum(accepted), "auf": all(is_right[:place])}
        weights.append(of_loss[loss])
    return weights


@pytest.mark.parametrize("loss", ["uniform", "decay-0.8", "dpace-0.1", "auf"])
def test_the_weightings_of_the_loss_are_those_of_their_papers(loss):
    weights_of = importlib.import_module("exact_losses").weights_of
    generator = torch.Generator().manual_seed(0)
    rows = [{"prompt_ids": [1, 2], "completion_ids": [3] * length} for length in (9, 2, 1, 5)]
    batch = WindowCollator(9, 8, block_length=4, max_length=16)(rows)
    labels = batch["labels"]
    scored = labels != -100
    probabilities = torch.rand(labels.shape, generator=generator)
    is_right = torch.rand(labels.shape, generator=generator) < 0.5
    losses = -probabilities[scored].log()
    counted = torch.stack([torch.ones_like(is_right[scored]), is_right[scored]], dim=1)
    terms = TokenTerms(losses=torch.stack([losses, losses], dim=1), counted=counted, entropy=losses)

    expected = torch.zeros(labels.shape)
    for row in range(4):
        for start in range(0, labels.shape[1], 3):
            window = (row, slice(start, start + 3))
            of_window = (labels[window].tolist(), probabilities[window].tolist(), is_right[window].tolist())
            expected[window] = torch.tensor(naive_weights(loss, 3, *of_window), dtype=torch.float32)
    weights = weights_of(loss, terms, batch)
    # Those of masks that are not scored count nowhere.
    torch.testing.assert_close(weights[scored], expected[scored])
    assert not scored.all() and weights.shape == labels.shape


def test_exact_decoding_counts_the_same_json_and_the_last_number_as_right():
    is_right = importlib.import_module("exact_tasks").is_right
    assert is_right("requests", '{"a": 1, "b": 2}', '{"b": 2, "a": 1}')
    assert not is_right("requests", '{"a": 1}', '{"a": 1')
    assert is_right("counting", "So 1200 .", "3 + 4, so 1,200.0") and not is_right("counting", "So 12 .", "none")


def dry_run(*arguments: str, **variables: str) -> list[list[str]]:
    """The commands that reproduce.sh would run."""
    result = subprocess.run(
        ["bash", str(REPRODUCE), *arguments],
        env={"PATH": os.environ["PATH"], "DRY_RUN": "1", **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    # A program in one of the commands has lines of its own, which bash quotes.
    return [shlex.split(line.replace("$'", "'")) for line in result.stdout.splitlines()]


def our_commands(*arguments: str, **variables: str) -> list[list[str]]:
    """The words of those of `hf-dparallel`, and `paper` and the words of `examples.paper`."""
    commands = []
    for words in dry_run(*arguments, **variables):
        if words[1] in ("benchmarks/certainty.py", "benchmarks/curves.py"):
            continue
        is_paper = "examples.paper" in words
        ours = ["paper", *words[words.index("examples.paper") + 1 :]] if is_paper else arguments_of_ours(words)
        commands += [ours] if ours is not None else []
    return commands


def parse(argv: list[str]) -> None:
    if argv[0] == "paper":
        paper.main.make_context("paper", argv[1:])
    else:
        parse_only(argv)


@pytest.mark.parametrize("model", ["llada-8b", "llada-1.5", "dream-7b"])
@pytest.mark.parametrize(
    "variables", [{}, {"LIMIT": "4", "LAUNCH": "accelerate launch --num_processes 4 -m"}], ids=str
)
def test_every_command_of_the_reproduction_parses(tmp_path, model, variables):
    commands = our_commands(model, str(tmp_path / "o ut"), **variables)
    assert [argv[0] for argv in commands] == ["trajectories"] * 3 + ["train"] * 2 + ["paper"]
    for argv in commands:
        parse(argv)
    # What one command writes the next ones read.
    written = [argv[argv.index("--output_dir") + 1] for argv in commands]
    assert all(path.startswith(str(tmp_path / "o ut")) for path in written)
    for flag, folder in (("--adapter", written[3]), ("--consistency_adapter", written[4])):
        assert commands[5][commands[5].index(flag) + 1] == folder


@pytest.mark.parametrize(("table", "num_students"), [("table3", 4), ("table4", 5)])
def test_every_command_of_the_ablations_parses(tmp_path, table, num_students):
    commands = [argv for argv in our_commands("llada-8b", str(tmp_path), table) if argv[0] != "trajectories"]
    assert [argv[0] for argv in commands] == ["train", "paper"] * num_students
    for training, evaluation in zip(commands[::2], commands[1::2], strict=True):
        parse(training)
        parse(evaluation)
        assert evaluation[evaluation.index("--adapter") + 1] == training[training.index("--output_dir") + 1]


@pytest.mark.parametrize(("table", "num_students"), [("table3", 4), ("table4", 5)])
def test_the_ablations_end_with_curves_of_the_students_that_they_trained(tmp_path, table, num_students):
    *commands, curves, figures = dry_run("llada-8b", str(tmp_path), table)
    trained = [words[words.index("--output_dir") + 1] for words in commands if "--dataset_name" in words]
    args = certainty.parser_of("").parse_args(curves[2:])
    assert [str(folder) for _, folder in args.adapters] == trained and len(trained) == num_students
    assert args.students == [] and args.dataset == "gsm8k" and figures[2] == str(args.report)


@pytest.mark.parametrize(
    ("variables", "steps"),
    [
        ({}, "64"),
        ({"LAUNCH": "accelerate launch --num_processes=2 -m"}, "32"),
        ({"LAUNCH": "accelerate launch --config_file examples/configs/accelerate/ddp.yaml -m"}, "8"),
        ({"LAUNCH": "srun torchrun --nnodes 2 --nproc-per-node 8 -m", "PROCESSES": "16"}, "4"),
    ],
    ids=str,
)
def test_the_effective_batch_is_64_on_any_number_of_processes(tmp_path, variables, steps):
    trainings = [words for words in dry_run("dream-7b", str(tmp_path), **variables) if "--dataset_name" in words]
    assert [words[words.index("--gradient_accumulation_steps") + 1] for words in trainings] == [steps, steps]


@pytest.mark.parametrize(
    ("model", "launch", "said"),
    [
        ("llada-8b", "torchrun --nproc-per-node 8 -m", "set PROCESSES"),
        ("llada-8b", "accelerate launch --num_processes 3 -m", "divides 64, got '3'"),
        ("llada-9b", "python -m", "choose llada-8b, llada-1.5 or dream-7b"),
    ],
)
def test_what_cannot_be_reproduced_is_refused(tmp_path, model, launch, said):
    with pytest.raises(subprocess.CalledProcessError) as caught:
        dry_run(model, str(tmp_path), LAUNCH=launch)
    assert said in caught.value.stderr


def test_an_interrupted_reproduction_goes_on(tmp_path):
    (tmp_path / "student" / "checkpoint-5").mkdir(parents=True)
    trainings = [words for words in dry_run("llada-8b", str(tmp_path)) if "--dataset_name" in words]
    assert [words[-2:] == ["--resume_from_checkpoint", "true"] for words in trainings] == [True, False]
