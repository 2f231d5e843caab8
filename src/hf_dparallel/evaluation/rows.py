# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Makes the rows of a report, its curves and its files."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..reports import markdown_table, results_table, write_report
from .aup import accuracy_under_parallelism
from .decoding import Evaluation
from .intervals import bootstrap_interval, wilson_interval


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


def metrics_with_intervals(answers: Evaluation) -> dict[str, Any]:
    """Returns the means of [`evaluate_decoding`] with 95 % intervals."""
    metrics = answers.metrics()
    return {
        **metrics,
        "accuracy_interval": list(wilson_interval(metrics["accuracy"], len(answers.costs))),
        "nfe_interval": list(bootstrap_interval([cost.nfe for cost in answers.costs])),
        "tokens_per_forward_interval": list(bootstrap_interval([cost.tokens_per_forward for cost in answers.costs])),
    }


def aup_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the accuracy under parallelism of each curve (see [`accuracy_under_parallelism`]).

    Losses are counted from the best accuracy of all rows. Empty if that is 1 % or less. Settings under which all
    answers are empty do not count.
    """
    best = max(row["accuracy"] for row in rows)
    aup = {}
    for curve, points in _curves(rows).items():
        # Where settings decode alike, the more accurate one overwrites the others.
        points = sorted(points, key=lambda point: point["accuracy"])
        accuracy = {point["answer_tokens_per_forward"]: 100 * point["accuracy"] for point in points}
        accuracy.pop(0.0, None)
        if accuracy and best > 0.01:
            aup[curve] = accuracy_under_parallelism(list(accuracy), list(accuracy.values()), max_accuracy=100 * best)
    return aup


def write_evaluation(report: Mapping[str, Any], output_dir: str | os.PathLike) -> None:
    """Writes a report whose rows each have a `curve` to a folder, which is created.

    Curves with several points are also drawn, in `curves.png`.
    """
    paragraphs = [results_table(report["rows"])]
    curves = _curves(report["rows"])
    has_curve = any(len(points) > 1 for points in curves.values())
    if has_curve:
        aup = [(curve, f"{value:.1f}") for curve, value in aup_of(report["rows"]).items()]
        picture = "![Accuracy against tokens per forward pass](curves.png)"
        paragraphs += [markdown_table(["Curve", "AUP"], aup), picture]
    write_report(report, output_dir, paragraphs)
    if has_curve:
        from ..inspection.plots import plot_tradeoff

        labelled = {
            curve: [{**point, "label": point["method"].removeprefix(curve).strip()} for point in points]
            for curve, points in curves.items()
        }
        plot_tradeoff(labelled).savefig(Path(output_dir) / "curves.png")


def _curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    curves: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        curves.setdefault(row["curve"], []).append(row)
    return curves
