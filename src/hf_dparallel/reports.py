# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Files of measured results: `report.json` for programs, and `report.md` with tables for people."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


REPORT_NAME = "report.json"


def read_report(path: str | os.PathLike) -> dict[str, Any]:
    """Reads a `report.json`, of which the folder may be given.

    Raises:
        ValueError: if it holds no JSON object.
        OSError: if there is no such file.
    """
    return read_json(Path(path) / REPORT_NAME if Path(path).is_dir() else Path(path))


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object that a JSON file holds.

    Raises:
        ValueError: naming a file that holds something else.
        OSError: if there is no such file.
    """
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


def write_report(report: Mapping[str, Any], folder: str | os.PathLike, paragraphs: Sequence[str]) -> None:
    """Writes `report.json`, and `report.md` with the paragraphs, to a folder, which is created."""
    write_json(report, Path(folder) / REPORT_NAME)
    (Path(folder) / "report.md").write_text("\n\n".join(paragraphs) + "\n", encoding="utf-8")


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[Any]], num_text_columns: int = 1) -> str:
    """Makes a Markdown table that is also readable on a terminal.

    The first `num_text_columns` columns are aligned at the left, the others, with numbers, at the right.
    """
    lines = [[escape_markdown(str(cell)) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = [
        "-" * width if column < num_text_columns else "-" * (width - 1) + ":" for column, width in enumerate(widths)
    ]
    return "\n".join(_table_line(line, widths, num_text_columns) for line in (lines[0], rule, *lines[1:]))


def escape_markdown(text: str) -> str:
    """Returns a text in one line that neither ends a cell of a table nor begins an element of HTML."""
    line = " ".join(text.split())
    return line.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _table_line(cells: Sequence[str], widths: Sequence[int], num_text_columns: int) -> str:
    padded = [
        cell.ljust(width) if column < num_text_columns else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return f"| {' | '.join(padded)} |"
