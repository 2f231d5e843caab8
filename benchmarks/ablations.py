# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The paper's ablations (Tables 3 and 4), its baseline and our variants, on the bundled teacher over several seeds.

    python benchmarks/ablations.py --folder ablations --output benchmarks/results/ablations.json

Every variant is the demo's distillation with other settings of the same trainer. What is in `folder` already is not
run again, so several processes may share it, each with variants of its own (`--variants`), once a first one has made
the trajectories of a seed.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel, set_seed

from hf_dparallel.demo.pipeline import (
    MAX_NEW_TOKENS,
    DemoConfig,
    distil,
    evaluate_settings,
    fewest_passes,
    load_teacher,
    make_trajectories,
    tuning_grid,
    word_problem_dataset,
)
from hf_dparallel.environment import describe_environment


FEW_STEPS = {"denoising_steps": MAX_NEW_TOKENS // 4}
FIXED = {"entropy_threshold": 0.5}
# The paper decodes its baseline in a fixed number of steps.
IN_FEW_STEPS = ("dparallel", "consistency-distillation")

# By name: its row in the table, and its settings of `CertaintyForcingConfig`.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "dparallel": ("both losses, semi-AR masking, random ratio (the demo)", {}),
    "consistency-only": ("consistency loss only", {"certainty_weight": 0.0}),
    "certainty-only": ("certainty loss only", {"consistency_weight": 0.0}),
    "no-semi-ar": ("both losses, no semi-AR masking", {"masking": "random"}),
    "ratio-25": ("mask ratio 25 %", {"mask_ratio": 0.25}),
    "ratio-50": ("mask ratio 50 %", {"mask_ratio": 0.5}),
    "ratio-75": ("mask ratio 75 %", {"mask_ratio": 0.75}),
    "ratio-100": ("mask ratio 100 %", {"mask_ratio": 1.0}),
    "consistency-distillation": (
        "consistency distillation",
        {
            "masking": "trajectory",
            "block_length": MAX_NEW_TOKENS,
            "complementary_masking": False,
            "certainty_weight": 0.0,
        },
    ),
    "trajectory": ("teacher's order", {"masking": "trajectory"}),
    "trajectory-one-view": ("teacher's order, one view", {"masking": "trajectory", "complementary_masking": False}),
    "trajectory-one-view-400": (
        "teacher's order, one view, twice the steps",
        {"masking": "trajectory", "complementary_masking": False, "max_steps": 400},
    ),
    "trajectory-progressive": (
        "teacher's order, one view, ratio 10 to 80 %, blocks of 16 to 32",
        {
            "masking": "trajectory",
            "complementary_masking": False,
            "initial_mask_ratio": 0.1,
            "mask_ratio": 0.8,
            "initial_block_length": 16,
        },
    ),
    "progressive-ratio": ("mask ratio 25 to 100 %", {"initial_mask_ratio": 0.25, "mask_ratio": 1.0}),
    "whole-answer": ("one block of 64", {"block_length": MAX_NEW_TOKENS}),
    "weight-4": ("weight of the certainty loss 4", {"certainty_weight": 4.0}),
}


class Ablations:
    """Runs variants on one seed's problems. Results go to `folder`, one file each."""

    def __init__(self, folder: Path, seed: int, teacher: str | None):
        self.folder = folder / f"seed-{seed}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.config = DemoConfig(output_dir=str(self.folder), teacher=teacher, seed=seed)
        self.teacher, self.tokenizer = load_teacher(path=teacher)
        self.tuning = word_problem_dataset(self.config.num_tuning_problems, seed + 1, split="test")
        self.held_out = word_problem_dataset(self.config.num_problems, seed + 2, split="test")

    def baselines(self) -> dict[str, Any]:
        """The teacher at one token per pass, on both sets of problems, and in few steps; and its trajectories."""
        return self._once("teacher", self._run_teacher)

    def run(self, name: str) -> dict[str, Any]:
        """Trains and measures a variant."""
        return self._once(name, lambda: self._run_variant(name))

    def _once(self, name: str, run) -> dict[str, Any]:
        path = self.folder / f"{name}.json"
        if not path.exists():
            print(f"\n{self.folder.name}: {name}", flush=True)
            temporary = path.with_suffix(f".{os.getpid()}")
            temporary.write_text(json.dumps(run(), indent=2) + "\n")
            os.replace(temporary, path)
        return json.loads(path.read_text())

    def _run_teacher(self) -> dict[str, Any]:
        make_trajectories(self.teacher, self.tokenizer, self.config)
        return {
            "tuning": self._evaluate(self.teacher, self.tuning, {}),
            "original": self._evaluate(self.teacher, self.held_out, {}),
            "few_steps": self._evaluate(self.teacher, self.held_out, FEW_STEPS),
            "fixed": self._evaluate(self.teacher, self.held_out, FIXED),
        }

    def _run_variant(self, name: str) -> dict[str, Any]:
        settings = VARIANTS[name][1]
        set_seed(self.config.seed)
        trajectories = Dataset.from_parquet(str(self.folder / "trajectories.parquet"))
        start = time.time()
        student = distil(trajectories, self.tokenizer, self.config, self.teacher.dtype, **settings)
        train_seconds = time.time() - start
        grid = tuning_grid()["entropy_threshold"]
        curve = evaluate_settings(student, self.tokenizer, self.tuning, self.config, grid)
        chosen = fewest_passes(curve, self.baselines()["tuning"]["accuracy"])["recipe"]
        fixed = self._evaluate(student, self.held_out, FIXED)
        return {
            "settings": settings,
            "train_seconds": train_seconds,
            "curve": curve,
            "fixed": fixed,
            "chosen": fixed if chosen == FIXED else self._evaluate(student, self.held_out, chosen),
            "few_steps": self._evaluate(student, self.held_out, FEW_STEPS) if name in IN_FEW_STEPS else None,
        }

    def _evaluate(self, model: PreTrainedModel, problems: Dataset, recipe: dict[str, Any]) -> dict[str, Any]:
        (metrics,) = evaluate_settings(model, self.tokenizer, problems, self.config, [recipe])
        return metrics


def spread(values: list[float]) -> str:
    """Mean and, of several values, standard deviation."""
    mean = f"{statistics.mean(values):.1f}"
    return f"{mean} ± {statistics.stdev(values):.1f}" if len(values) > 1 else mean


def table(runs: list[dict[str, dict[str, Any]]], names: list[str]) -> str:
    """A Markdown table of the variants, mean ± standard deviation over seeds."""
    lines = [
        "| Training | Passes at 0.5 | Accuracy at 0.5 | Chosen threshold | Passes | Accuracy | Accuracy, 16 passes |",
        "| --- | ---: | ---: | --- | ---: | ---: | ---: |",
    ]
    for name in names:
        results = [run[name] for run in runs]
        chosen = [result["chosen"] for result in results]
        lines.append(
            f"| {VARIANTS[name][0]} | {_column(results, 'fixed', 'nfe')} | {_column(results, 'fixed', 'accuracy')} | "
            f"{', '.join(str(figures['recipe']['entropy_threshold']) for figures in chosen)} | "
            f"{_column(results, 'chosen', 'nfe')} | {_column(results, 'chosen', 'accuracy')} | "
            f"{_column(results, 'few_steps', 'accuracy') if name in IN_FEW_STEPS else '–'} |"
        )
    return "\n".join(lines)


def _column(results: list[dict[str, Any]], decoding: str, figure: str) -> str:
    scale = 100 if figure == "accuracy" else 1
    return spread([scale * result[decoding][figure] for result in results])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--teacher", help="folder of the teacher")
    parser.add_argument("--folder", type=Path, required=True, help="for the runs, a folder for each seed")
    parser.add_argument("--output", type=Path, help="JSON file for the figures")
    args = parser.parse_args()
    runs = []
    for seed in args.seeds:
        ablations = Ablations(args.folder, seed, args.teacher)
        runs.append({"teacher": ablations.baselines(), **{name: ablations.run(name) for name in args.variants}})
    print(table(runs, args.variants))
    teachers = [run["teacher"] for run in runs]
    for decoding in ("original", "few_steps", "fixed"):
        print(f"teacher, {decoding}: {_column(teachers, decoding, 'nfe')}, {_column(teachers, decoding, 'accuracy')}")
    if args.output is not None:
        result = {
            "runs": dict(zip(args.seeds, runs, strict=True)),
            "num_threads": torch.get_num_threads(),
            "environment": describe_environment(),
        }
        args.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
