# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel report`: what was evaluated at different times, side by side."""

from typing import Any

from hf_dparallel_cli.command import Flags

from ..evaluation.comparison import compare_reports, read_comparable_report, unique_names
from ..evaluation.rows import write_evaluation
from ..reports import results_table
from .console import make_folder, note, say


def run(flags: Flags) -> dict[str, Any]:
    """Prints the rows of all reports and their differences to the first row, or says why they cannot be compared."""
    make_folder(flags.output_dir)
    reports = [read_comparable_report(path) for path in flags.reports]
    compared = compare_reports(dict(zip(unique_names([report["name"] for report in reports]), reports, strict=True)))
    differing = ", ".join(compared["differing_hardware"])
    notes = [f"Latencies are left out: the reports differ in {differing}."] if differing else []
    say(results_table(compared["rows"]))
    for text in notes:
        note(text)
    if flags.output_dir is not None:
        write_evaluation(compared, flags.output_dir, notes)
    return compared
