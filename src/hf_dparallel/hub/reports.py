# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Measured figures and an example for a model card, from what `hf-dparallel` commands wrote with `--json`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any

from huggingface_hub import EvalResult

from ..generation.commit_rules import commit_rules
from ..reports import markdown_table, read_json
from ..reports import read_report as read_report_file
from .files import hub_name


# Name on the card, and format in its table.
_METRICS = {
    "nfe": ("Forward passes per answer", "{:.1f}"),
    "tokens_per_forward": ("Tokens per forward pass", "{:.2f}"),
    "latency_s": ("Seconds per answer", "{:.3g}"),
    "accuracy": ("Accuracy", "{:.1%}"),
}
_DATA_SUFFIXES = (".json", ".jsonl", ".parquet", ".csv")


@dataclass
class Report:
    """Measured results of several models or methods (`rows`); `own` is the row of the model with its recipe."""

    rows: list[dict[str, Any]]
    own: dict[str, Any]
    dataset: str
    num_prompts: int | None

    def table(self) -> str:
        """Returns the rows as a Markdown table."""
        header = ["Method", *(title for title, _ in _METRICS.values())]
        rows = [
            [
                f"**{row['method']}**" if row is self.own else row["method"],
                *(number.format(row[name]) for name, (_, number) in _METRICS.items()),
            ]
            for row in self.rows
        ]
        return markdown_table(header, rows)

    def eval_results(self) -> list[EvalResult]:
        """Returns the figures of this model as the metadata of a card has them."""
        return [
            EvalResult(
                task_type="text-generation",
                dataset_type=self.dataset,
                dataset_name=self.dataset,
                metric_type=name,
                metric_name=title,
                metric_value=round(self.own[name], 4),
            )
            for name, (title, _) in _METRICS.items()
        ]


def read_report(path: str | os.PathLike, recipe: Mapping[str, Any]) -> Report:
    """Reads a report: the figures of one model, or `rows` of several.

    The model's own are those in the last row with the commit rule of its recipe, or else in the last one.

    Raises:
        ValueError: if it is no report.
        OSError: if there is no such file.
    """
    report = read_report_file(path)
    rows = report.get("rows", [{"method": "This model", **report}])
    missing = [name for name in _METRICS if not all(isinstance(row.get(name), int | float) for row in rows)]
    if missing or not rows:
        raise ValueError(
            f"`report={path}` has no figures for {', '.join(missing or _METRICS)}. Give what `hf-dparallel evaluate "
            "--json FILE`, or `hf-dparallel demo` (report.json), wrote."
        )
    dataset = str(report.get("dataset", "prompts of the author"))
    if hub_name(dataset) is None or dataset.endswith(_DATA_SUFFIXES):
        # The folder of a file of prompts is not for the public.
        dataset = PureWindowsPath(dataset).name
    rules = [{name: value for name, value in row.get("recipe", {}).items() if name in commit_rules()} for row in rows]
    matching = [row for row, rule in zip(rows, rules, strict=True) if rule and rule.items() <= recipe.items()]
    num_prompts = report.get("num_prompts") or report.get("conditions", {}).get("num_prompts")
    return Report(rows, (matching or rows)[-1], dataset, num_prompts)


def read_example(path: str | os.PathLike) -> dict[str, Any]:
    """Reads an answer with its prompt and its cost, which `hf-dparallel generate --json` wrote.

    Raises:
        ValueError: if it is none.
        OSError: if there is no such file.
    """
    example = read_json(Path(path))
    kinds = {"prompt": str, "text": str, "nfe": int, "tokens_per_forward": float}
    missing = [name for name, kind in kinds.items() if not isinstance(example.get(name), kind)]
    if missing:
        raise ValueError(f"`example={path}` has no {missing[0]}. Give what `hf-dparallel generate --json FILE` wrote.")
    return example
