# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Makes the rows of a report, its curves and its files."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..reports import markdown_table, results_table, write_report
from .aup import accuracy_under_parallelism


def make_rows(measured: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Turns what was measured for each method into rows of a report.

    `speedup` is the latency of the first method over the latency of the row's method.
    """
    baseline = next(iter(measured.values()))["latency_s"]
    return [
        {
            "method": method,
            **{name: value for name, value in metrics.items() if name != "num_prompts"},
            "speedup": baseline / metrics["latency_s"],
        }
        for method, metrics in measured.items()
    ]


def aup_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the accuracy under parallelism of each curve (see [`accuracy_under_parallelism`]).

    Losses are counted from the best accuracy of all rows. Empty if that is 1 % or less.
    """
    best = max(row["accuracy"] for row in rows)
    aup = {}
    for curve, points in _curves(rows).items():
        # Where settings decode alike, the more accurate one overwrites the others. Empty answers do not count.
        points.sort(key=lambda point: point["accuracy"])
        accuracy = {point["answer_tokens_per_forward"]: 100 * point["accuracy"] for point in points}
        accuracy.pop(0.0, None)

        if accuracy and best > 0.01:
            aup[curve] = accuracy_under_parallelism(list(accuracy), list(accuracy.values()), max_accuracy=100 * best)
    return aup


def write_evaluation(report: Mapping[str, Any], output_dir: str | os.PathLike) -> None:
    """Writes a report whose rows each have a `curve`. Those of several points are drawn in `curves.png`, if judged."""
    paragraphs = [results_table(report["rows"])]
    curves = _curves(report["rows"])
    if "accuracy" in report["rows"][0] and any(len(points) > 1 for points in curves.values()):
        from ..inspection.plots import plot_tradeoff

        aup = [(curve, f"{value:.1f}") for curve, value in aup_of(report["rows"]).items()]
        paragraphs += [markdown_table(["Curve", "AUP"], aup), "![Accuracy against tokens per pass](curves.png)"]

        for curve, points in curves.items():
            curves[curve] = [{**point, "label": point["method"].removeprefix(curve).strip()} for point in points]
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        plot_tradeoff(curves).savefig(Path(output_dir) / "curves.png")
    write_report(report, output_dir, paragraphs)


def _curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    curves: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        curves.setdefault(row["curve"], []).append(row)
    return curves
