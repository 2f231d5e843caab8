# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Text on a terminal: what may be written to it, and how many cells and rows that takes."""

import os
import unicodedata
from collections.abc import Iterator
from typing import TextIO


# Characters that reverse the direction of the text around them.
_DIRECTIONS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def takes_color(stream: TextIO) -> bool:
    """Whether to write colours to a stream: to a terminal, unless NO_COLOR is set (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def printable(text: str) -> str:
    """Returns the text with the names of control characters in their place.

    With control characters a model could take over a terminal. Newlines stay, a tab is four spaces, and a carriage
    return, of which some texts have one before each newline, is left out.
    """
    text = text.replace("\t", "    ").replace("\r", "")
    return "".join(repr(char)[1:-1] if _is_control(char) else char for char in text)


def width(char: str) -> int:
    """Returns how many cells of a terminal a character takes."""
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def last_cell(text: str) -> str:
    """Returns the last character of a text that takes room, with the accents on it."""
    start = max((place for place, char in enumerate(text) if width(char)), default=0)
    return text[start:]


def fitting(text: str, column: int, columns: int, rows: int) -> str:
    """Returns the beginning of a text that fits on so many rows, the first of which it enters at a column."""
    return text[: sum(row < rows for row, _ in _places(text, column, columns))]


def flow(text: str, column: int, columns: int) -> tuple[int, int]:
    """Returns how many rows further, and in which column, a text ends on a terminal with so many columns."""
    place = 0, column
    for place in _places(text, column, columns):  # noqa: B007
        pass
    return place


def _places(text: str, column: int, columns: int) -> Iterator[tuple[int, int]]:
    """Yields how many rows further, and in which column, each character of a text ends."""
    row = 0
    for char in text:
        if char == "\n" or column + width(char) > columns:
            row, column = row + 1, 0
        column += width(char) * (char != "\n")
        yield row, column


def _is_control(char: str) -> bool:
    return char != "\n" and (unicodedata.category(char) in ("Cc", "Cs") or char in _DIRECTIONS)
