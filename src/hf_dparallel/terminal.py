# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What may be written to a terminal."""

import unicodedata


# Characters that reverse the direction of the text around them.
_DIRECTIONS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def printable(text: str) -> str:
    """Returns the text with the names of control characters in their place.

    With control characters a model could take over a terminal. Newlines stay, a tab is four spaces, and a carriage
    return, of which some texts have one before each newline, is left out.
    """
    text = text.replace("\t", "    ").replace("\r", "")
    return "".join(repr(char)[1:-1] if _is_control(char) else char for char in text)


def _is_control(char: str) -> bool:
    return char != "\n" and (unicodedata.category(char) in ("Cc", "Cs") or char in _DIRECTIONS)
