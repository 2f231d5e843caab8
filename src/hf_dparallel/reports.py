# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Measured results: rows and tables as Table 1 of https://huggingface.co/papers/2509.26488, files, and comparisons.

`report.json` is for programs, `report.md` with the tables for people.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .evaluation.aup import accuracy_under_parallelism
from .evaluation.intervals import bootstrap_interval, paired_interval, wilson_interval


if TYPE_CHECKING:
    from .evaluation.decoding import Evaluation

REPORT_NAME = "report.json"
# What every row has.
TABLE_METRICS = ("accuracy", "nfe", "tokens_per_forward", "latency_s")
# Columns of a table: heading, name in a row, factor and format of the number. Columns in hundredths show intervals.
_COLUMNS = (
    ("Passes", "nfe", 1, "{:.1f}"),
    ("Tokens per pass", "tokens_per_forward", 1, "{:.2f}"),
    ("Latency", "latency_s", 1000, "{:.0f} ms"),
    ("Speed-up", "speedup", 1, "{:.1f}x"),
    ("Accuracy", "accuracy", 100, "{:.1f}%"),
    ("Difference, points", "accuracy_difference", 100, "{:+.1f}"),
)
# What a comparison needs: `conditions` must be equal for accuracy and passes to mean the same, `hardware` for seconds.
_COMPARED = ("name", "conditions", "hardware", "rows")
_SECONDS = ("latency_s", "row_latency_s", "tokens_per_second", "row_tokens_per_second", "speedup")


# Files.


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object that a JSON file holds. It is a `ValueError` if it holds something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"`{path}` is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise ValueError(f"`{path}` must hold a JSON object, got a {type(value).__name__}.")
    return value


def write_json(value: Mapping[str, Any], path: str | os.PathLike) -> None:
    """Writes a JSON file, and creates its folder."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def read_report(path: str | os.PathLike) -> dict[str, Any]:
    """Reads a report by its path or its folder."""
    return read_json(Path(path) / REPORT_NAME if Path(path).is_dir() else Path(path))


def write_report(report: Mapping[str, Any], folder: str | os.PathLike, paragraphs: Sequence[str]) -> None:
    """Writes `report.json`, and `report.md` with the paragraphs, to a folder, which is created."""
    write_json(report, Path(folder) / REPORT_NAME)
    (Path(folder) / "report.md").write_text("\n\n".join(paragraphs) + "\n", encoding="utf-8")


def write_evaluation(report: Mapping[str, Any], output_dir: str | os.PathLike, notes: Sequence[str] = ()) -> None:
    """Writes a report whose rows each have a `curve`, with the notes below the table, to a folder, which is created.

    Curves with several points are also drawn, in `curves.png`.
    """
    paragraphs = [results_table(report["rows"]), *notes]
    curves = curves_of(report["rows"])
    has_curve = any(len(points) > 1 for points in curves.values())
    if has_curve:
        aup = [(curve, f"{value:.1f}") for curve, value in aup_of(report["rows"]).items()]
        picture = "![Accuracy against tokens per forward pass](curves.png)"
        paragraphs += [markdown_table(["Curve", "AUP"], aup), picture]
    write_report(report, output_dir, paragraphs)
    if has_curve:
        from .inspection.plots import plot_tradeoff

        labelled = {
            curve: [{**point, "label": point["method"].removeprefix(curve).strip()} for point in points]
            for curve, points in curves.items()
        }
        plot_tradeoff(labelled).savefig(Path(output_dir) / "curves.png")


# Rows.


def make_rows(measured: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Turns what was measured for each method into rows of a report.

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


def metrics_with_intervals(answers: "Evaluation") -> dict[str, Any]:
    """The means of [`evaluate_decoding`], their 95 % intervals, and as `answers` what each prompt gave."""
    nfe = [cost.nfe for cost in answers.costs]
    metrics = answers.metrics()
    return {
        **metrics,
        "accuracy_interval": list(wilson_interval(metrics["accuracy"], len(nfe))),
        "nfe_interval": list(bootstrap_interval(nfe)),
        "tokens_per_forward_interval": list(bootstrap_interval([cost.tokens_per_forward for cost in answers.costs])),
        "answers": {
            "is_correct": [int(correct) for correct in answers.is_correct],
            "nfe": nfe,
            "num_tokens": [cost.num_tokens for cost in answers.costs],
        },
    }


def curves_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Groups the rows by their `curve`."""
    curves: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        curves.setdefault(row["curve"], []).append(row)
    return curves


def aup_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the accuracy under parallelism of each curve (see [`accuracy_under_parallelism`]).

    Losses are counted from the best accuracy of all rows. Empty if that is 1 % or less. Settings under which all
    answers are empty do not count.
    """
    best = max(row["accuracy"] for row in rows)
    aup = {}
    for curve, points in curves_of(rows).items():
        # Where settings decode alike, the more accurate one overwrites the others.
        points = sorted(points, key=lambda point: point["accuracy"])
        accuracy = {point["answer_tokens_per_forward"]: 100 * point["accuracy"] for point in points}
        accuracy.pop(0.0, None)
        if accuracy and best > 0.01:
            aup[curve] = accuracy_under_parallelism(list(accuracy), list(accuracy.values()), max_accuracy=100 * best)
    return aup


# Comparisons.


def read_comparable_report(path: str | os.PathLike) -> dict[str, Any]:
    """Reads a report of `hf-dparallel evaluate` by its path or its folder; refuses others."""
    report = read_report(path)
    missing = [name for name in _COMPARED if not report.get(name)]
    if not missing and not all("answers" in row for row in report["rows"]):
        missing = ["the results of each answer"]
    if missing:
        folder = Path(path) if Path(path).is_dir() else Path(path).parent
        of_tasks = [str(other.parent) for other in sorted(folder.glob("*/report.json"))]
        if "preset" in report and of_tasks:
            raise ValueError(
                f"{path} is of all benchmarks of a preset. Compare them one by one, each has a folder: "
                f"{', '.join(of_tasks)}."
            )
        raise ValueError(
            f"{path} is no report that can be compared: it lacks {', '.join(missing)}. `hf-dparallel evaluate "
            "--dataset NAME --output_dir DIR` writes one, and `--preset NAME` one for each benchmark. Reports "
            "of `demo` are of another kind."
        )
    return report


def compare_reports(reports: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Puts the rows of several reports, given by name, into one: `rows`, `conditions` and `differing_hardware`.

    Each row gets the difference of its accuracy to the first row of all, prompt by prompt, with its 95 % interval.
    Latencies are kept, and speed-ups counted from the first row, if all were measured on the same hardware in the same
    way; else `differing_hardware` names what differs. Other prompts, references, rewards or canvases are refused.
    """
    (first_name, first), *others = reports.items()
    differing: set[str] = set()
    for name, report in others:
        for condition in _differing(first["conditions"], report["conditions"]):
            ours, theirs = first["conditions"].get(condition), report["conditions"].get(condition)
            raise ValueError(
                f"{first_name} and {name} cannot be compared: `{condition}` is {ours!r} in one and {theirs!r} in the "
                "other. Evaluate both on the same prompts with the same settings."
            )
        differing.update(_differing(first["hardware"], report["hardware"]))
    baseline = first["rows"][0]
    rows = [_compared(name, row, baseline) for name, report in reports.items() for row in report["rows"]]
    if differing:
        rows = [{name: value for name, value in row.items() if name not in _SECONDS} for row in rows]
    return {"rows": rows, "conditions": first["conditions"], "differing_hardware": sorted(differing)}


def unique_names(names: Sequence[str]) -> list[str]:
    """Makes names different from one another by numbers."""
    numbered = [name if names.count(name) == 1 else f"{name} ({index + 1})" for index, name in enumerate(names)]
    return numbered if len(set(numbered)) == len(names) else unique_names(numbered)


def _differing(first: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [name for name in {**first, **other} if first.get(name) != other.get(name)]


def _compared(name: str, row: Mapping[str, Any], baseline: Mapping[str, Any]) -> dict[str, Any]:
    differences = np.subtract(row["answers"]["is_correct"], baseline["answers"]["is_correct"])
    compared = {
        **row,
        "method": f"{name}: {row['method']}",
        "curve": f"{name}: {row['curve']}",
        "accuracy_difference": float(differences.mean()),
        "accuracy_difference_interval": [0.0, 0.0] if row is baseline else list(paired_interval(differences)),
    }
    if "latency_s" in row and "latency_s" in baseline:
        compared["speedup"] = baseline["latency_s"] / row["latency_s"]
    return compared


# Tables.


def results_table(rows: Sequence[Mapping[str, Any]], own: Mapping[str, Any] | None = None) -> str:
    """Formats rows as a Markdown table that is also readable on a terminal; columns that they lack are left out.

    Accuracies and their differences show their intervals, if there are any. The method of the row `own` is in bold.
    """
    # One row alone is no faster than another.
    columns = [column for column in _COLUMNS if column[1] in rows[0] and (column[1] != "speedup" or len(rows) > 1)]
    header = [
        heading + (" (95 %)" if _interval(rows[0], name, factor) else "") for heading, name, factor, _ in columns
    ]
    lines = [
        [
            f"**{row['method']}**" if row is own else row["method"],
            *(number.format(factor * row[name]) + _interval(row, name, factor) for _, name, factor, number in columns),
        ]
        for row in rows
    ]
    return markdown_table(["Method", *header], lines)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[Any]], num_text_columns: int = 1) -> str:
    """Makes a Markdown table that is also readable on a terminal.

    The first `num_text_columns` columns are aligned at the left, the others, with numbers, at the right.
    """
    lines = [[escape_markdown(str(cell)) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides = ["<" if column < num_text_columns else ">" for column in range(len(widths))]
    rule = ["-" * width if side == "<" else "-" * (width - 1) + ":" for side, width in zip(sides, widths, strict=True)]
    aligned = [
        [f"{cell:{side}{width}}" for cell, width, side in zip(line, widths, sides, strict=True)]
        for line in (lines[0], rule, *lines[1:])
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in aligned)


def escape_markdown(text: str) -> str:
    """Returns a text in one line that neither ends a cell of a table nor is a link or an element of HTML."""
    line = " ".join(text.split())
    return line.replace("\\", "\\\\").replace("|", "\\|").replace("](", "]\\(").replace("<", "&lt;")


def _interval(row: Mapping[str, Any], name: str, factor: float) -> str:
    ends = row.get(f"{name}_interval") if factor == 100 else None
    return f" [{100 * ends[0]:.1f}, {100 * ends[1]:.1f}]" if ends else ""
