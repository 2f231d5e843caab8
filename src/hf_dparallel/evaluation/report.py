# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Result tables in the form of Table 1 of https://huggingface.co/papers/2509.26488."""

from collections.abc import Sequence
from typing import Any


def make_rows(measured: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """Turns what [`evaluate_decoding`] measured for each method into table rows.

    `speedup` is the latency of the first method over that of the row's.
    """
    baseline = next(iter(measured.values()))["latency_s"]
    names = ("accuracy", "nfe", "tokens_per_forward", "latency_s")
    return [
        {"method": method, **{name: figures[name] for name in names}, "speedup": baseline / figures["latency_s"]}
        for method, figures in measured.items()
    ]


def markdown_table(rows: Sequence[dict[str, Any]]) -> str:
    """Formats rows of [`make_rows`] as a Markdown table that is also readable on a terminal."""
    header = ("Method", "Passes", "Tokens per pass", "Latency", "Speed-up", "Accuracy")
    cells = [
        (
            row["method"],
            f"{row['nfe']:.1f}",
            f"{row['tokens_per_forward']:.2f}",
            f"{row['latency_s'] * 1000:.0f} ms",
            f"{row['speedup']:.1f}x",
            f"{row['accuracy']:.1%}",
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    rule = [f"{'':-<{widths[0]}}", *(f"{'':->{width - 1}}:" for width in widths[1:])]
    return "\n".join(_table_line(line, widths) for line in (header, rule, *cells))


def _table_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    return "| " + " | ".join([f"{first[0]:<{first[1]}}", *(f"{cell:>{width}}" for cell, width in others)]) + " |"
