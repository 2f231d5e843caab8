# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Do the bundled teacher's figures still come out? Compares them with those in benchmarks/expected/.

    python benchmarks/regression.py            # exit code 1 and a line for each figure that is off
    python benchmarks/regression.py --write    # record the figures of today, with the same tolerances

`make test` does the former. The figures are counts in float32, not times, so that they are the same on every machine
up to the rounding of sums, which may turn a few near ties: hence the tolerances.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from hf_dparallel import DiffusionGenerationConfig, evaluate_decoding, numeric_answer_reward
from hf_dparallel.demo.pipeline import load_teacher, word_problem_dataset
from hf_dparallel.reports import read_json, write_json


EXPECTED = Path(__file__).parent / "expected"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="record instead of comparing")
    write = parser.parse_args().write
    problems = []
    files = sorted(EXPECTED.glob("*.json"))
    if not files:
        sys.exit(f"There are no files of expected figures in {EXPECTED}.")
    for path in files:
        expected = read_json(path)
        measured = measure(expected)
        if write:
            for row, figures in zip(expected["rows"], measured, strict=True):
                row["figures"] = figures
            write_json(expected, path)
        problems += [f"{path.name}: {problem}" for problem in deviations(expected, measured)]
    print("\n".join(problems) or "All figures are as expected.")
    return 1 if problems else 0


def measure(expected: dict[str, Any]) -> list[dict[str, float]]:
    """Decodes the problems with the recipe of each row and returns the figures that the file has tolerances for."""
    teacher, tokenizer = load_teacher(torch.float32)
    problems = word_problem_dataset(expected["num_problems"], expected["seed"], split="test")
    measured = []
    for row in expected["rows"]:
        recipe = DiffusionGenerationConfig(**row["recipe"])
        figures = evaluate_decoding(teacher, tokenizer, problems, numeric_answer_reward, recipe, batch_size=32)
        measured.append({name: round(figures[name], 4) for name in expected["tolerances"]})
    return measured


def deviations(expected: dict[str, Any], measured: list[dict[str, float]]) -> list[str]:
    """Names the figures that differ by more than their tolerance."""
    return [
        f"{name} with {row['recipe']} is {figures[name]}, expected {row['figures'][name]} ± {tolerance}"
        for row, figures in zip(expected["rows"], measured, strict=True)
        for name, tolerance in expected["tolerances"].items()
        if not abs(figures[name] - row["figures"][name]) <= tolerance
    ]


if __name__ == "__main__":
    sys.exit(main())
