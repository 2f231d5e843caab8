# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Compares methods at equal accuracy, from the outcomes that `benchmarks/certainty.py` recorded.

    python benchmarks/curves.py benchmarks/results/certainty.json --chart docs/images/certainty.svg

A curve has a point for each threshold: mean passes, and the fraction of right answers. The teacher has thresholds of
two rules, by entropy and by confidence, as the better one is its best. The passes *at an accuracy* are
the fewest at which the curve reaches it, on straight lines between neighbouring points. Intervals are of 95 %, from a
bootstrap that draws seeds, each with its trainings, and then problems, the same ones for both methods.
"""

import argparse
import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from hf_dparallel.evaluation.aup import accuracy_under_parallelism
from hf_dparallel.evaluation.intervals import wilson_interval
from hf_dparallel.reports import markdown_table, read_json


NAMES = {
    "teacher": "Teacher, best threshold",
    "consistency": "Student, consistency only",
    "both": "Student, both losses",
    "likely": "Certainty where the label is likely",
    "early": "Weight by the teacher's pass",
    "bold": "Bold answers of its own",
}
COMPARED = ("teacher", "consistency", "both")
# Accuracies at which methods are compared, in points below the teacher's at one token a pass.
LOSSES = (1, 3, 5)
NUM_DRAWS = 1000

# Passes and accuracy of each point, by the passes.
Points = list[tuple[float, float]]
# Passes and right answers, arrays `(thresholds, problems)`.
Outcomes = tuple[np.ndarray, np.ndarray]


class Curves:
    """The outcomes of a report, by model and seed."""

    def __init__(self, report: dict[str, Any], problems: str = "held out"):
        self.points = [point for point in report["points"] if point["problems"] == problems]
        self.seeds = sorted({point["seed"] for point in self.points})
        measured = dict.fromkeys(point["model"] for point in self.points)
        known = [name for name in NAMES if name in measured]
        self.models = known + [name for name in measured if name not in NAMES]

    def of(self, model: str, seed: int) -> list[dict[str, Any]]:
        """Returns the points of a model on the problems of a seed, by threshold."""
        chosen = [point for point in self.points if point["model"] == model and point["seed"] == seed]
        return sorted(chosen, key=lambda point: (threshold_of(point), *point["settings"]))

    def thresholds(self, model: str) -> list[float]:
        return [threshold_of(point) for point in self.of(model, self.seeds[0])]

    def outcomes(self, model: str, seed: int) -> Outcomes:
        points = self.of(model, seed)
        passes = np.array([list(map(int, point["passes"].split())) for point in points])
        right = np.array([list(map(int, point["right"])) for point in points])
        return passes, right

    def mean(self, model: str, seeds: Sequence[int] | None = None) -> Points:
        """Returns the curve of a model: at each threshold, the mean over seeds."""
        parts = [self.outcomes(model, seed) for seed in seeds or self.seeds]
        return _mean_curve(parts)

    def at_one_token(self) -> float:
        """Returns the accuracy of the teacher at one token a pass."""
        return fmean(self.outcomes("teacher", seed)[1][0].mean() for seed in self.seeds)

    def aup(self, model: str, seed: int, best: float | None = None) -> float:
        """Returns the accuracy under parallelism on the problems of a seed, relative to the best of all models."""
        if best is None:
            best = max(self.outcomes(name, seed)[1].mean(axis=1).max() for name in self.models)

        points = self.of(model, seed)
        accuracy = [100 * fmean(map(int, point["right"])) for point in points]
        return accuracy_under_parallelism([point["tokens_per_forward"] for point in points], accuracy, 100 * best)

    def draws(self) -> Iterator[list[tuple[int, np.ndarray]]]:
        """Yields for each draw of the bootstrap some seeds and the problems of each."""
        rng = np.random.default_rng(0)
        count = self.outcomes(self.models[0], self.seeds[0])[0].shape[1]
        for _ in range(NUM_DRAWS):
            seeds = rng.choice(self.seeds, size=len(self.seeds))
            yield [(int(seed), rng.integers(count, size=count)) for seed in seeds]

    def ratio(self, model: str, other: str, loss: float, seeds: Sequence[int] | None = None) -> dict[str, Any]:
        """Returns the passes of both at an accuracy, `loss` points below the teacher's, and their ratio."""
        accuracy = self.at_one_token() - loss / 100
        passes, of_other = (passes_at(self.mean(name, seeds), accuracy) for name in (model, other))
        return {"accuracy": accuracy, "passes": passes, "other": of_other, "ratio": _over(passes, of_other)}

    def ratio_intervals(self, model: str, other: str) -> list[tuple[float, float] | None]:
        """Returns intervals of [`ratio`] for all `LOSSES`, `None` where 5 % of the draws miss the accuracy."""
        accuracies = [self.at_one_token() - loss / 100 for loss in LOSSES]
        parts = {name: {seed: self.outcomes(name, seed) for seed in self.seeds} for name in (model, other)}
        ratios: list[list[float | None]] = []
        for draw in self.draws():
            curves = [_drawn_curve(parts[name], draw) for name in (model, other)]
            ratios.append([_over(*(passes_at(curve, accuracy) for curve in curves)) for accuracy in accuracies])
        return [_quantiles(column) for column in zip(*ratios, strict=True)]

    def gain(self, model: str, other: str, seeds: Sequence[int] | None = None) -> float:
        """Returns the points that `model` gains on `other` at equal passes, on average over passes.

        The passes are those between the ends of both curves, evenly spaced in their logarithm.
        """
        return _mean_gain(*(self.mean(name, seeds) for name in (model, other)))

    def gain_interval(self, model: str, other: str) -> tuple[float, float]:
        parts = {name: {seed: self.outcomes(name, seed) for seed in self.seeds} for name in (model, other)}
        gains = [_mean_gain(*(_drawn_curve(parts[name], draw) for name in (model, other))) for draw in self.draws()]
        low, high = np.quantile(gains, [0.025, 0.975])
        return float(low), float(high)


def threshold_of(point: dict[str, Any]) -> float:
    """Returns the threshold of a point, 0 for one token a pass."""
    return next(iter(point["settings"].values()), 0)


def _mean_curve(parts: Sequence[Outcomes]) -> Points:
    passes = np.mean([passes.mean(axis=1) for passes, _ in parts], axis=0)
    right = np.mean([right.mean(axis=1) for _, right in parts], axis=0)
    return sorted(zip(passes.tolist(), right.tolist(), strict=True))


def _drawn_curve(parts: dict[int, Outcomes], draw: list[tuple[int, np.ndarray]]) -> Points:
    drawn = []
    for seed, problems in draw:
        passes, right = parts[seed]
        drawn.append((passes[:, problems], right[:, problems]))
    return _mean_curve(drawn)


def _quantiles(ratios: Sequence[float | None]) -> tuple[float, float] | None:
    found = [ratio for ratio in ratios if ratio is not None]
    if len(found) < 0.95 * len(ratios):
        return None
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def _over(passes: float | None, other: float | None) -> float | None:
    return None if passes is None or other is None else passes / other


def passes_at(points: Points, accuracy: float) -> float | None:
    """Returns the fewest passes at which a curve reaches an accuracy, `None` if it never does."""
    before: tuple[float, float] | None = None
    for passes, right in points:
        if right >= accuracy:
            if before is None:
                return passes
            share = (accuracy - before[1]) / (right - before[1])
            return before[0] + share * (passes - before[0])
        before = passes, right
    return None


def accuracy_at(points: Points, passes: float) -> float:
    """Returns the accuracy at a number of passes, on straight lines between the points."""
    return float(np.interp(passes, [point[0] for point in points], [point[1] for point in points]))


def _mean_gain(points: Points, other: Points) -> float:
    start = max(points[0][0], other[0][0])
    end = min(points[-1][0], other[-1][0])
    if end <= start:
        return math.nan
    grid = np.geomspace(start, end, 32)
    return 100 * fmean(accuracy_at(points, passes) - accuracy_at(other, passes) for passes in grid)


def _number(value: float | None, form: str = "{:.2f}") -> str:
    return "–" if value is None else form.format(value)


def _interval(ends: tuple[float, float] | None, form: str = "{:.2f}") -> str:
    return "" if ends is None else " ({} to {})".format(*(form.format(end) for end in ends))


def table_of_thresholds(curves: Curves) -> str:
    """Returns the means over seeds at each threshold."""
    lines = []
    for model in curves.models:
        parts = [curves.outcomes(model, seed) for seed in curves.seeds]
        for row, point in enumerate(curves.of(model, curves.seeds[0])):
            passes = [part[0][row].mean() for part in parts]
            right = [100 * part[1][row].mean() for part in parts]
            name = " ".join(f"{rule} {value:g}" for rule, value in point["settings"].items()) or "one token a pass"
            by_seed = ", ".join(f"{value:.1f}" for value in right)
            lines.append([NAMES.get(model, model), name, f"{fmean(passes):.1f}", f"{fmean(right):.1f}", by_seed])
    return markdown_table(["Model", "Threshold", "Passes", "Right (%)", "By seed"], lines, 2)


def table_at_equal_accuracy(curves: Curves, models: Sequence[str] = COMPARED) -> str:
    """Returns passes at equal accuracy and AUP, means over seeds, and the ratio of each model to the one before."""
    levels = [f"At {100 * curves.at_one_token() - loss:.1f} %" for loss in LOSSES]
    lines = []
    for model in models:
        points = curves.mean(model)
        passes = [passes_at(points, curves.at_one_token() - loss / 100) for loss in LOSSES]
        aups = [curves.aup(model, seed) for seed in curves.seeds]
        by_seed = ", ".join(f"{aup:.0f}" for aup in aups)
        shown = [_number(value, "{:.1f}") for value in passes]
        lines.append([NAMES.get(model, model), *shown, f"{fmean(aups):.0f} ({by_seed})"])

    for other, model in pairwise(models):
        ratios = []
        for loss, ends in zip(LOSSES, curves.ratio_intervals(model, other), strict=True):
            ratio = _number(curves.ratio(model, other, loss)["ratio"])
            ratios.append(ratio + _interval(ends))
        lines.append([f"{NAMES.get(model, model)} / {NAMES.get(other, other)}", *ratios, ""])
    return markdown_table(["Passes", *levels, "AUP (by seed)"], lines)


def table_of_others(report: dict[str, Any]) -> str:
    """Returns accuracy and passes on each kind of problems by entropy threshold, means over seeds."""
    kinds = dict.fromkeys(point["problems"] for point in report["points"])
    thresholds = sorted({threshold_of(point) for point in report["points"]})
    lines = []
    for kind in kinds:
        curves = Curves(report, kind)
        for model in curves.models:
            parts = [curves.outcomes(model, seed) for seed in curves.seeds]
            cells = dict.fromkeys(thresholds, "–")
            for row, threshold in enumerate(curves.thresholds(model)):
                right = fmean(right[row].mean() for _, right in parts)
                passes = fmean(passes[row].mean() for passes, _ in parts)
                cells[threshold] = f"{100 * right:.1f} % in {passes:.1f}"
            lines.append([kind, NAMES.get(model, model).partition(", best")[0], *cells.values()])
    return markdown_table(["Problems", "Model", *(f"{threshold:g}" for threshold in thresholds)], lines, 2)


def table_of_ratios(curves: Curves, other: str) -> str:
    """Returns for each model the passes beside another's, at equal accuracy, and the points at equal passes."""
    lines = []
    for model in curves.models:
        if model == other:
            continue
        cells = []
        for loss, ends in zip(LOSSES, curves.ratio_intervals(model, other), strict=True):
            ratio = _number(curves.ratio(model, other, loss)["ratio"])
            interval = _interval(ends)
            by_seed = ", ".join(_number(curves.ratio(model, other, loss, [seed])["ratio"]) for seed in curves.seeds)
            cells.append(f"{ratio}{interval} [{by_seed}]")

        gains = ", ".join(f"{curves.gain(model, other, [seed]):+.1f}" for seed in curves.seeds)
        gain = f"{curves.gain(model, other):+.1f}{_interval(curves.gain_interval(model, other), '{:+.1f}')} [{gains}]"
        lines.append([NAMES.get(model, model), *cells, gain])
    levels = [f"at {100 * curves.at_one_token() - loss:.1f} %" for loss in LOSSES]
    return markdown_table([f"Passes / those of: {NAMES.get(other, other)}", *levels, "Points at equal passes"], lines)


def chart(curves: Curves, head: str, floor: float) -> str:
    """Returns the picture of accuracy against passes, behind the title and style of a picture of the docs."""
    shown = {"teacher": "bar", "consistency": "first", "both": "third"}
    head = re.sub(r'viewBox="[^"]*" width="\d+" height="\d+"', 'viewBox="0 0 480 300" width="480" height="300"', head)
    parts = [head.strip(), '<rect class="page" x="0.5" y="0.5" width="479" height="299" rx="10"/>']
    for percent in (0, 25, 50, 75, 100):
        y = 240 - 2 * percent
        parts.append(f'<line class="given" x1="52" x2="460" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="46" y="{y + 4}" class="small" text-anchor="end">{percent}%</text>')
    for doublings in range(7):
        parts.append(f'<text x="{52 + 68 * doublings}" y="260" class="small mid">{2**doublings}</text>')

    x = 52 + 68 * math.log2(floor)
    parts.append(f'<line class="given" x1="{x:.1f}" x2="{x:.1f}" y1="40" y2="240" stroke-dasharray="3 3"/>')
    parts.append(f'<text x="{x:.1f}" y="34" class="small mid">least possible</text>')
    parts.append('<text x="256" y="284" class="small mid">forward passes per answer, fewer is faster</text>')
    parts.append('<text x="12" y="20" class="small">right answers</text>')
    for number, (model, style) in enumerate(shown.items()):
        count = sum(curves.outcomes(model, seed)[0].shape[1] for seed in curves.seeds)
        line = []
        for passes, accuracy in curves.mean(model):
            ends = wilson_interval(accuracy, count)
            x_of_point = f"{52 + 68 * math.log2(passes):.1f}"
            y_of_point, low, high = (f"{240 - 200 * value:.1f}" for value in (accuracy, *ends))
            parts.append(f'<circle class="{style} dot" cx="{x_of_point}" cy="{y_of_point}" r="3.5"/>')
            bar = f'x1="{x_of_point}" x2="{x_of_point}" y1="{low}" y2="{high}"'
            parts.append(f'<line class="{style}" {bar}/>')
            line.append(f"{x_of_point},{y_of_point}")

        parts.append(f'<polyline class="{style}" style="fill: none" points="{" ".join(line)}"/>')
        parts.append(f'<circle class="{style} dot" cx="280" cy="{174 + 24 * number}" r="3.5"/>')
        parts.append(f'<text x="292" y="{178 + 24 * number}" class="small">{NAMES.get(model, model)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("--chart", type=Path, help="a picture of the docs, whose style stays")
    parser.add_argument("--floor", type=float, default=2.0, help="the least passes that an answer can take")
    args = parser.parse_args()
    report = read_json(args.report)
    kinds = dict.fromkeys(point["problems"] for point in report["points"])
    if len(kinds) > 1:
        print(table_of_others(report))
        return

    curves = Curves(report)
    print(table_of_thresholds(curves))
    print(f"\n{table_at_equal_accuracy(curves, curves.models)}")
    for other in COMPARED:
        if other in curves.models:
            print(f"\n{table_of_ratios(curves, other)}")
    if args.chart:
        head = args.chart.read_text(encoding="utf-8").partition("<rect")[0]
        args.chart.write_text(chart(curves, head, args.floor), encoding="utf-8")


if __name__ == "__main__":
    main()
