# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Whether `calibrate` keeps its promise: how often its choice loses more than the tolerance, and what it gives up.

    python benchmarks/promise.py benchmarks/results/certainty.json --report benchmarks/results/promise.json

The outcomes that `benchmarks/certainty.py` recorded are taken as all the prompts that there are. A calibration gets
prompts drawn from them, with replacement, and its choice is judged on all. Nothing is decoded.
"""

import argparse
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from curves import Curves, threshold_of

from hf_dparallel.evaluation.calibration import calibrate
from hf_dparallel.evaluation.cost import DecodingCost
from hf_dparallel.evaluation.decoding import Evaluation
from hf_dparallel.reports import markdown_table, read_json, write_json


TOLERANCES = (0.01, 0.02)
NUM_PROMPTS = (200, 460, 1000)
REFERENCE: dict[str, float] = {}


class Population:
    """The outcomes of a student at each threshold, and of its teacher at one token a pass, on all prompts."""

    def __init__(self, curves: Curves, model: str, seed: int):
        self.thresholds = [threshold_of(point) for point in curves.of(model, seed)]
        self.passes, self.right = curves.outcomes(model, seed)
        self.reference = curves.outcomes("teacher", seed)[1][0]

    def loss(self, threshold: float) -> float:
        """Returns the accuracy that a threshold truly loses."""
        return float(self.reference.mean() - self.right[self.thresholds.index(threshold)].mean())

    def nfe(self, threshold: float) -> float:
        return float(self.passes[self.thresholds.index(threshold)].mean())

    def best(self, tolerance: float) -> float | None:
        """Returns the fewest passes of a threshold that truly keeps the tolerance."""
        kept = [self.nfe(threshold) for threshold in self.thresholds if self.loss(threshold) <= tolerance]
        return min(kept, default=None)

    def choose(self, rng: np.random.Generator, num_prompts: int, tolerance: float) -> float | None:
        """Returns the threshold that `calibrate` chooses with some of the prompts."""
        drawn_rows = rng.integers(len(self.reference), size=(2, num_prompts // 2))
        halves = {"calibration": drawn_rows[0], "confirmation": drawn_rows[1]}

        def evaluate(half: str, settings: Mapping[str, Any]) -> Evaluation:
            drawn = halves[half]
            if not settings:
                return Evaluation(self.reference[drawn].astype(bool).tolist(), [DecodingCost(1, 1, 1)], 1.0)
            row = self.thresholds.index(settings["entropy_threshold"])
            costs = [DecodingCost(int(nfe), 1, 1) for nfe in self.passes[row][drawn]]
            return Evaluation(self.right[row][drawn].astype(bool).tolist(), costs, 1.0)

        candidates = [{"entropy_threshold": threshold} for threshold in self.thresholds]
        chosen, _ = calibrate(evaluate, candidates, REFERENCE, tolerance)
        return None if chosen is None else chosen.settings["entropy_threshold"]


def simulate(population: Population, num_prompts: int, tolerance: float, repetitions: int) -> dict[str, Any]:
    """Calibrates many times, and counts the thresholds that were chosen."""
    rng = np.random.default_rng(0)
    chosen = Counter(population.choose(rng, num_prompts, tolerance) for _ in range(repetitions))
    found = {threshold: count for threshold, count in chosen.items() if threshold is not None}
    broken = sum(count for threshold, count in found.items() if population.loss(threshold) > tolerance)
    passes = sum(count * population.nfe(threshold) for threshold, count in found.items())
    return {
        "num_prompts": num_prompts,
        "tolerance": tolerance,
        "repetitions": repetitions,
        "none": chosen[None],
        "broken": broken,
        "nfe": passes / max(sum(found.values()), 1),
        "best_nfe": population.best(tolerance),
        "chosen": {f"{threshold:g}": count for threshold, count in sorted(found.items())},
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Returns for each number of prompts and tolerance the sums over students."""
    lines = []
    for tolerance in TOLERANCES:
        for num_prompts in NUM_PROMPTS:
            same = [row for row in rows if (row["tolerance"], row["num_prompts"]) == (tolerance, num_prompts)]
            total = sum(row["repetitions"] for row in same)
            found = [row for row in same if row["none"] < row["repetitions"] and row["best_nfe"]]
            given_up = [row["nfe"] / row["best_nfe"] - 1 for row in found]
            worst = max(row["broken"] / row["repetitions"] for row in same)
            lines.append(
                [
                    f"{100 * tolerance:.0f} point{'s' if tolerance > 0.01 else ''}",
                    f"{num_prompts:,}",
                    f"{sum(row['broken'] for row in same) / total:.1%} (at most {worst:.1%})",
                    f"{sum(row['none'] for row in same) / total:.0%}",
                    f"{sum(given_up) / max(len(given_up), 1):.0%}",
                ]
            )
    heads = ["Tolerance", "Prompts", "Loses more", "Chooses nothing", "Passes above the fewest"]
    return markdown_table(heads, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outcomes", type=Path)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--repetitions", type=int, default=500)
    args = parser.parse_args()
    curves = Curves(read_json(args.outcomes))
    rows = []
    for model in ("consistency", "both"):
        for seed in curves.seeds:
            population = Population(curves, model, seed)
            for tolerance in TOLERANCES:
                for num_prompts in NUM_PROMPTS:
                    row = simulate(population, num_prompts, tolerance, args.repetitions)
                    rows.append({"model": model, "seed": seed} | row)
    write_json({"rows": rows}, args.report)
    print(table(rows))


if __name__ == "__main__":
    main()
