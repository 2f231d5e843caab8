# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Files of measured results, and tables as Table 1 of https://huggingface.co/papers/2509.26488.

`report.json` is for programs, `report.md` with the tables for people.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


REPORT_NAME = "report.json"
# Keys of every row.
TABLE_METRICS = ("accuracy", "nfe", "tokens_per_forward", "latency_s")
# Columns of a table: heading, name in a row, factor and format of the number.
_COLUMNS = (
    ("Passes", "nfe", 1, "{:.1f}"),
    ("Tokens per pass", "tokens_per_forward", 1, "{:.2f}"),
    ("Latency", "latency_s", 1000, "{:.0f} ms"),
    ("Speed-up", "speedup", 1, "{:.1f}x"),
    ("Accuracy", "accuracy", 100, "{:.1f}%"),
)


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object that a JSON file holds. Anything else is a `ValueError`."""
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


def check_is_new(output_dir: Path) -> None:
    """Refuses a folder or file where something would be overwritten."""
    if output_dir.exists() and (not output_dir.is_dir() or any(output_dir.iterdir())):
        raise FileExistsError(f"`output_dir={output_dir}` is not empty. Give a new folder.")


def read_report(path: str | os.PathLike) -> dict[str, Any]:
    """Reads a report by its path or its folder."""
    return read_json(Path(path) / REPORT_NAME if Path(path).is_dir() else Path(path))


def write_report(report: Mapping[str, Any], folder: str | os.PathLike, paragraphs: Sequence[str]) -> None:
    """Writes `report.json`, and `report.md` with the paragraphs, to a folder, which is created."""
    write_json(report, Path(folder) / REPORT_NAME)
    (Path(folder) / "report.md").write_text("\n\n".join(paragraphs) + "\n", encoding="utf-8")


def results_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Formats rows as a Markdown table that is also readable on a terminal; columns that they lack are left out."""
    columns = []
    header = ["Method"]
    for column in _COLUMNS:
        heading, name, *_ = column
        # One row alone is no faster than another.
        if name in rows[0] and (name != "speedup" or len(rows) > 1):
            columns.append(column)
            has_intervals = any(row.get(f"{name}_interval") for row in rows)
            header.append(f"{heading} (95 %)" if has_intervals else heading)

    lines = []
    for row in rows:
        line = [row["method"]]
        for _, name, factor, number in columns:
            cell = number.format(factor * row[name])
            interval = row.get(f"{name}_interval")
            if interval:
                low, high = (number.format(factor * end).removesuffix("%") for end in interval)
                cell += f" [{low}, {high}]"
            line.append(cell)
        lines.append(line)
    table = markdown_table(header, lines)

    drafts = [row for row in rows if row.get("acceptance")]
    if not drafts:
        return table
    num_places = max(len(row["acceptance"]) for row in drafts)
    accepted = []
    for row in drafts:
        parts = [f"{100 * part:.0f}" for part in row["acceptance"]]
        empty = [""] * (num_places - len(parts))
        accepted.append([row["method"], *parts, *empty])
    title = ["Drafts accepted (%), by place", *map(str, range(1, num_places + 1))]
    return f"{table}\n\n{markdown_table(title, accepted)}"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[Any]], num_text_columns: int = 1) -> str:
    """Makes a Markdown table that is also readable on a terminal.

    The first `num_text_columns` columns are aligned at the left, the others, with numbers, at the right.
    """
    lines = [[escape_markdown(str(cell)) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

    # The line below the header, whose colons align the columns.
    rule = ["-" * width for width in widths]
    for column in range(num_text_columns, len(widths)):
        rule[column] = rule[column][:-1] + ":"
    lines.insert(1, rule)

    table = []
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        for column in range(num_text_columns, len(widths)):
            cells[column] = line[column].rjust(widths[column])
        table.append(f"| {' | '.join(cells)} |")
    return "\n".join(table)


def escape_markdown(text: str) -> str:
    """Returns a text in one line that neither ends a cell of a table nor is a link or an element of HTML."""
    line = " ".join(text.split())
    return line.replace("\\", "\\\\").replace("|", "\\|").replace("](", "]\\(").replace("<", "&lt;")
