# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel report`: what was evaluated at different times, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..reports import compare_reports, read_comparable_report, results_table, unique_names, write_evaluation
from .arguments import CommandParser, OutputArguments
from .console import make_folder, note, say, write_json


@dataclass
class ComparisonArguments:
    reports: list[str] = field(metadata={"help": "report.json of each evaluation, or its folder."})
    output_dir: str | None = field(
        default=None, metadata={"help": "Folder for report.json, report.md and curves.png of all together."}
    )


def make_parser() -> CommandParser:
    """The arguments of the command."""
    return CommandParser("report", [ComparisonArguments, OutputArguments], ["reports"])


def run(argv: Sequence[str]) -> None:
    """Prints the rows of all reports and their differences to the first row, or says why they cannot be compared."""
    comparison, output = make_parser().parse(argv)
    make_folder(comparison.output_dir)
    reports = [read_comparable_report(path) for path in comparison.reports]
    compared = compare_reports(dict(zip(unique_names([report["name"] for report in reports]), reports, strict=True)))
    notes = []
    if compared["differing_hardware"]:
        notes.append(f"Latencies are left out: the reports differ in {', '.join(compared['differing_hardware'])}.")
    say(results_table(compared["rows"]))
    for text in notes:
        note(text)
    if comparison.output_dir is not None:
        write_evaluation(compared, comparison.output_dir, notes)
    write_json(compared, output.json)
