# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Evaluations of different times side by side, if they can be compared."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..reports import read_report
from .intervals import paired_interval


# To be comparable, accuracy and passes need equal `conditions`, and seconds equal `hardware`.
_COMPARED = ("name", "conditions", "hardware", "rows")
_SECONDS = ("latency_s", "row_latency_s", "tokens_per_second", "row_tokens_per_second", "speedup")


def read_comparable_report(path: str | os.PathLike) -> dict[str, Any]:
    """Reads a report of `hf-dparallel evaluate` by its path or its folder; refuses others."""
    report = read_report(path)
    missing = [name for name in _COMPARED if not report.get(name)]
    if not missing and not all("answers" in row for row in report["rows"]):
        missing = ["the results of each answer"]
    if missing:
        raise ValueError(
            f"{path} is no report that can be compared: it lacks {', '.join(missing)}. `hf-dparallel evaluate "
            "--dataset NAME --output_dir DIR` writes one, and benchmarks/paper one in the folder of each "
            "benchmark. Reports of `demo` are of another kind."
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
