# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Result tables in the form of Table 1 of https://huggingface.co/papers/2509.26488, and the files they are kept in."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..reports import markdown_table, write_report
from .aup import accuracy_under_parallelism
from .decoding import EvaluatedAnswers
from .intervals import bootstrap_interval


# The columns of the table.
TABLE_METRICS = ("accuracy", "nfe", "tokens_per_forward", "latency_s")


def make_rows(measured: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Turns what was measured for each method into table rows.

    `speedup` is the latency of the first method over the latency of the row's method.
    """
    baseline = next(iter(measured.values()))["latency_s"]
    return [
        {
            "method": method,
            **{name: metrics[name] for name in TABLE_METRICS},
            "speedup": baseline / metrics["latency_s"],
            **{name: value for name, value in metrics.items() if name not in (*TABLE_METRICS, "num_prompts")},
        }
        for method, metrics in measured.items()
    ]


def metrics_with_intervals(answers: EvaluatedAnswers) -> dict[str, Any]:
    """The means of [`evaluate_decoding`], their 95 % bootstrap intervals, and as `answers` what each prompt gave."""
    nfe = [cost.nfe for cost in answers.costs]
    by_prompt: dict[str, Sequence[float]] = {
        "accuracy": answers.is_correct,
        "nfe": nfe,
        "tokens_per_forward": [cost.tokens_per_forward for cost in answers.costs],
    }
    return {
        **answers.metrics(),
        **{f"{name}_interval": list(bootstrap_interval(values)) for name, values in by_prompt.items()},
        "answers": {
            "is_correct": [int(correct) for correct in answers.is_correct],
            "nfe": nfe,
            "num_tokens": [cost.num_tokens for cost in answers.costs],
        },
    }


def results_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Formats rows of [`make_rows`] as a Markdown table that is also readable on a terminal.

    Rows with an interval of the accuracy show it, and those with an `accuracy_difference` that, in points. Rows
    without a latency, because it cannot be compared, have none in the table.
    """
    header = ["Method", "Passes", "Tokens per pass"]
    lines = [[row["method"], f"{row['nfe']:.1f}", f"{row['tokens_per_forward']:.2f}"] for row in rows]
    if "latency_s" in rows[0]:
        header += ["Latency", "Speed-up"]
        for line, row in zip(lines, rows, strict=True):
            line += [f"{row['latency_s'] * 1000:.0f} ms", f"{row['speedup']:.1f}x"]
    header.append("Accuracy (95 %)" if rows[0].get("accuracy_interval") else "Accuracy")
    for line, row in zip(lines, rows, strict=True):
        line.append(f"{row['accuracy']:.1%}" + _interval(row.get("accuracy_interval")))
    if "accuracy_difference" in rows[0]:
        header.append("Difference, points (95 %)")
        for line, row in zip(lines, rows, strict=True):
            line.append(f"{100 * row['accuracy_difference']:+.1f}" + _interval(row["accuracy_difference_interval"]))
    return markdown_table(header, lines)


def curves_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Groups the rows by their `curve`."""
    curves: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        curves.setdefault(row["curve"], []).append(row)
    return curves


def aup_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the accuracy under parallelism of each curve (see [`accuracy_under_parallelism`]).

    The best accuracy of all rows is the one that losses are counted from. Empty if that is 1 % or less. Settings under
    which all answers are empty do not count.
    """
    best = max(row["accuracy"] for row in rows)
    aup: dict[str, float] = {}
    if best <= 0.01:
        return aup
    for curve, points in curves_of(rows).items():
        # Of settings that decode alike the more accurate one.
        accuracy: dict[float, float] = {}
        for point in points:
            speed = point["answer_tokens_per_forward"]
            if speed > 0:
                accuracy[speed] = max(accuracy.get(speed, 0.0), 100 * point["accuracy"])
        if not accuracy:
            continue
        aup[curve] = accuracy_under_parallelism(list(accuracy), list(accuracy.values()), max_accuracy=100 * best)
    return aup


def write_evaluation(report: Mapping[str, Any], output_dir: str | os.PathLike, notes: Sequence[str] = ()) -> None:
    """Writes `report.json`, `report.md` and, of curves with several points, the picture `curves.png`.

    Args:
        report (`dict`): with `rows`, each of which has a `curve`.
        output_dir (`str` or `os.PathLike`): a folder, which is made.
        notes (`Sequence[str]`): lines below the table.
    """
    paragraphs = [results_table(report["rows"]), *notes]
    curves = curves_of(report["rows"])
    has_curve = any(len(points) > 1 for points in curves.values())
    if has_curve:
        aup = [(curve, f"{value:.1f}") for curve, value in aup_of(report["rows"]).items()]
        paragraphs += [
            markdown_table(["Curve", "AUP"], aup),
            "![Accuracy against tokens per forward pass](curves.png)",
        ]
    write_report(report, output_dir, paragraphs)
    if has_curve:
        from ..inspection.plots import plot_tradeoff

        labelled = {
            curve: [{**point, "label": point["method"].removeprefix(curve).strip()} for point in points]
            for curve, points in curves.items()
        }
        plot_tradeoff(labelled).savefig(Path(output_dir) / "curves.png")


def _interval(interval: Sequence[float] | None) -> str:
    return "" if interval is None else f" [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]"
