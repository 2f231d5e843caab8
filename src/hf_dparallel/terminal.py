# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Text on a terminal: what may be written to it, and how many cells and rows that takes."""

import unicodedata

from rich.cells import cell_len, chop_cells


# Characters that reverse the direction of the text around them.
_DIRECTIONS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def printable(text: str) -> str:
    """Returns the text with the names of control characters in their place.

    With control characters a model could take over a terminal. Newlines stay, a tab is four spaces, and a carriage
    return, of which some texts have one before each newline, is left out.
    """
    text = text.replace("\t", "    ").replace("\r", "")
    return "".join(repr(char)[1:-1] if _is_control(char) else char for char in text)


def rows_of(text: str, column: int, columns: int) -> list[str]:
    """Returns the rows that a text fills on a terminal with so many columns, the first after `column` spaces."""
    lines = (" " * column + text).split("\n")
    return [row for line in lines for row in chop_cells(line, columns) or [""]]


def flow(text: str, column: int, columns: int) -> tuple[int, int]:
    """Returns how many rows further, and in which column, a text ends that begins in `column`."""
    rows = rows_of(text, column, columns)
    return len(rows) - 1, cell_len(rows[-1])


def _is_control(char: str) -> bool:
    return char != "\n" and (unicodedata.category(char) in ("Cc", "Cs") or char in _DIRECTIONS)
