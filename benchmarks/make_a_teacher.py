# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Makes a teacher of an autoregressive model, distils it, and measures both: the example of docs/make_a_teacher.md.

    python examples/make_a_teacher/roman_numerals.py --output_dir runs/roman
    python benchmarks/make_a_teacher.py --folder runs/roman --output benchmarks/results/make_a_teacher.json

Every step is a command of hf-dparallel, as the page has it. A run that was stopped goes on with the step that it was
in. Thresholds are chosen on the first half of the held-out questions, as the one with the fewest passes that loses at
most a point against one token per pass, and all figures are of the other half.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_dparallel.demo.pipeline import fewest_passes
from hf_dparallel.environment import describe_environment
from hf_dparallel.reports import markdown_table, read_report, write_json
from hf_dparallel_cli import main as hf_dparallel


EXAMPLE = Path(__file__).parents[1] / "examples" / "make_a_teacher"
# By attention, the flags of the conversion.
ATTENTIONS: dict[str, list[str]] = {"full": [], "block_causal": ["--block_length", "16"]}
CANVAS = ["--max_new_tokens", "48", "--block_length", "16"]
SMALL = ["--use_cpu", "--bf16", "false", "--dtype", "float32", "--report_to", "none", "--activation_checkpointing"]
SMALL += ["false", "--max_length", "72", "--per_device_train_batch_size", "32", "--gradient_accumulation_steps", "1"]
SMALL += ["--save_strategy", "no", "--lr_scheduler_type", "cosine"]
# One token in each pass, and the thresholds that are tried.
ENTROPIES = "entropy_threshold=0.1,0.3,0.5,0.8,1.1"
TEACHER_SWEEPS = ["denoising_steps=48", "confidence_threshold=0.5,0.7,0.9", ENTROPIES]
# Of the held-out questions: where thresholds are chosen, and where figures come from.
HALVES = {"tuning": slice(0, 300), "reported": slice(300, 600)}


def run(result: Path, *command: str) -> None:
    """Runs a command unless its result is there. A training that was stopped goes on at its last checkpoint."""
    if not result.exists():
        if any(result.parent.glob("checkpoint-*")):
            command += ("--resume_from_checkpoint", "true")
        print("hf-dparallel", *command, flush=True)
        if hf_dparallel(command) != 0:
            raise SystemExit(1)


def make_models(folder: Path, attention: str, num_steps: Sequence[int], seed: int) -> tuple[Path, Path]:
    """Makes the folders of teacher and student."""
    here = folder / f"{attention}-{seed}"
    start, teacher, rows, student = (here / name for name in ("start", "teacher", "trajectories", "student"))
    run(start, "convert", str(folder / "base"), "--output_dir", str(start), *ATTENTIONS[attention])
    flags = [*SMALL, "--seed", str(seed), "--max_steps"]
    preset = ["--config", str(EXAMPLE / f"{attention}.yaml"), "--dataset_name", str(folder / "train.jsonl")]
    run(
        teacher / "model.safetensors",
        *("train", *preset, "--model", str(start), "--output_dir", str(teacher)),
        *(*flags, str(num_steps[0]), "--learning_rate", "2e-3"),
    )
    run(
        rows / "filtered.parquet",
        *("trajectories", str(teacher), "--dataset", str(folder / "prompts.jsonl"), "--output_dir", str(rows)),
        *(*CANVAS, "--commit_order", "left_to_right", "--num_samples", "1000", "--batch_size", "50"),
    )
    run(
        student / "model.safetensors",
        *("train", "--model", str(teacher), "--dataset_name", str(rows), "--output_dir", str(student)),
        *(*flags, str(num_steps[1]), "--learning_rate", "1e-3", "--block_length", "16", "--mask_ratio", "random"),
        *("--per_device_train_batch_size", "16"),
    )
    return teacher, student


def measure(model: Path, folder: Path, sweeps: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Returns the rows of both halves of the held-out questions, one for each decoding setting."""
    rows = {}
    flags = [flag for sweep in sweeps for flag in ("--sweep", sweep)]
    for half in HALVES:
        report = model / f"evaluated-{half}"
        run(
            report / "report.json",
            *("evaluate", str(model), "--dataset", str(folder / f"{half}.jsonl"), *CANVAS, *flags),
            *("--output_dir", str(report), "--batch_size", "32"),
        )
        rows[half] = read_report(report)["rows"]
    return rows


def compare(
    teacher: dict[str, list[dict[str, Any]]], student: dict[str, list[dict[str, Any]]]
) -> dict[str, dict[str, Any]]:
    """Compares one token per pass, the teacher's best threshold and the student's; and returns all that was tried."""
    accuracy = teacher["tuning"][0]["accuracy"]
    rows = {"Teacher, one token per pass": teacher["reported"][0]}
    for title, tried in (("Teacher", teacher), ("Student", student)):
        name = fewest_passes(tried["tuning"], accuracy)["method"]
        row = next(row for row in tried["reported"] if row["method"] == name)
        rows[f"{title}, {name.replace('_', ' ')}"] = row
    return {"rows": rows, "curves": {"teacher": teacher["reported"], "student": student["reported"]}}


def table(report: dict[str, Any]) -> str:
    """Writes both attentions' rows as Markdown, the accuracy with its 95 % interval."""
    lines = []
    for attention in filter(report.get, ATTENTIONS):
        for title, row in report[attention]["rows"].items():
            low, high = row["accuracy_interval"]
            accuracy = f"{row['accuracy']:.1%} ({low:.1%} to {high:.1%})"
            lines.append((attention.replace("_", "-"), title, f"{row['nfe']:.1f}", accuracy))
    return markdown_table(["Attention", "Method", "Passes", "Accuracy"], lines, num_text_columns=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="What roman_numerals.py has written.")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--attention", nargs="+", choices=ATTENTIONS, default=list(ATTENTIONS))
    parser.add_argument("--num_steps", type=int, nargs=2, default=(1500, 1500), help="Of teacher and student.")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    report: dict[str, Any] = {"environment": describe_environment(), "num_steps": args.num_steps, "seed": args.seed}
    questions = (args.folder / "test.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    for half, part in HALVES.items():
        (args.folder / f"{half}.jsonl").write_text("".join(questions[part]), encoding="utf-8")
    for attention in args.attention:
        teacher, student = make_models(args.folder, attention, args.num_steps, args.seed)
        report[attention] = compare(
            measure(teacher, args.folder, TEACHER_SWEEPS), measure(student, args.folder, [ENTROPIES])
        )
        write_json(report, args.output)
    print(table(report))


if __name__ == "__main__":
    main()
