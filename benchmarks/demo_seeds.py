# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Runs the demo over several seeds and writes the spread of its figures.

    python benchmarks/demo_seeds.py --folder demo_seeds --output benchmarks/results/demo_seeds.json

A seed changes the problems, the masks and the initialization of the adapter; the teacher is the bundled one, or with
`--teacher` another. docs/research/experiments.md has figures.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

import torch

from hf_dparallel.demo.pipeline import DemoConfig, run_demo
from hf_dparallel.environment import describe_environment
from hf_dparallel.reports import REPORT_NAME, markdown_table, read_report, write_json


METHODS = (
    "one token per pass",
    "few-step",
    "confidence threshold",
    "entropy threshold",
    "Student",
)
FIGURES = ("nfe", "tokens_per_forward", "speedup", "accuracy")


def run_seeds(seeds: list[int], folder: Path, **settings: Any) -> list[dict[str, Any]]:
    """Runs the demo for each seed that has no report in `folder` yet, and returns all reports."""
    for seed in seeds:
        if not (folder / f"seed-{seed}" / REPORT_NAME).exists():
            run_demo(DemoConfig(output_dir=str(folder / f"seed-{seed}"), seed=seed, **settings))
    return [read_report(folder / f"seed-{seed}") for seed in seeds]


def spread_table(reports: list[dict[str, Any]]) -> str:
    """Makes a Markdown table of mean ± standard deviation over the reports, one row per method."""
    lines = []
    for index, method in enumerate(METHODS):
        rows = [report["rows"][index] for report in reports]
        cells = [_spread([row[name] * (100 if name == "accuracy" else 1) for row in rows]) for name in FIGURES]
        lines.append([method, *cells])
    return markdown_table(["Method", "Passes", "Tokens per pass", "Speed-up", "Accuracy (%)"], lines)


def goals(report: dict[str, Any]) -> dict[str, float]:
    """Returns two figures the demo must reach: passes against the best threshold rule, accuracy against original."""
    original, _, confidence, entropy, student, _ = report["rows"]
    return {
        "passes_of_student_over_best_teacher_rule": student["nfe"] / min(confidence["nfe"], entropy["nfe"]),
        "accuracy_of_student_minus_original": student["accuracy"] - original["accuracy"],
        "seconds": report["seconds"],
    }


def _spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--teacher", help="folder of the teacher")
    parser.add_argument("--folder", type=Path, required=True, help="for the demo's outputs, a folder for each seed")
    parser.add_argument("--output", type=Path, required=True)
    for name in ("num_trajectories", "num_train_steps"):
        parser.add_argument(f"--{name}", type=int, default=getattr(DemoConfig, name))
    args = parser.parse_args()
    settings = {name: getattr(args, name) for name in ("teacher", "num_trajectories", "num_train_steps")}
    reports = run_seeds(args.seeds, args.folder, **settings)
    result = {
        "environment": describe_environment(),
        "num_threads": torch.get_num_threads(),
        "goals": [goals(report) for report in reports],
        "reports": reports,
    }
    write_json(result, args.output)
    print(spread_table(reports))
    for seed, reached in zip(args.seeds, result["goals"], strict=True):
        print(f"seed {seed}: {reached}")


if __name__ == "__main__":
    main()
