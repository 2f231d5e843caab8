# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Prints a decode on the terminal, with tokens coloured by the pass that committed them."""

import unicodedata

from rich.console import Console
from rich.text import Text

from .trace import DecodeTrace


_MASK = "░"
# Characters that reverse the direction of the text around them.
_DIRECTIONS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
# The colours of a light page, for terminals, whose background is not known.
RAMP = (
    *("#bba3e8", "#b0acf2", "#a4b5fa", "#97befe", "#8bc8fe", "#80d0fc", "#78d9f6", "#76e0ee"),
    *("#7be6e4", "#86ebd8", "#96efcb", "#aaf2bf", "#bff3b3", "#d5f3aa", "#eaf2a4", "#fef1a1"),
)


def print_answer(trace: DecodeTrace, console: Console | None = None) -> None:
    """Prints the title of a decode, its answer and, where there are colours, a legend of them."""
    console = console or Console()
    title = f"{trace.name}, {trace.nfe} pass{'es' * (trace.nfe != 1)}, {trace.tokens_per_forward:.2f} tokens per pass"
    legend = Text()
    if console.color_system is not None and not console.no_color:
        legend = Text.assemble("   pass 1 ", *((" ", f"on {color}") for color in RAMP), f" pass {trace.nfe}")
    text = Text.assemble(title, legend, "\n", _canvas(trace, trace.nfe))
    # A terminal would break words at its edge.
    console.print(text, soft_wrap=not console.is_terminal)


def print_passes(trace: DecodeTrace, console: Console | None = None) -> None:
    """Prints a line for each pass: its number, how many tokens it committed, and the canvas after it.

    Masks are shown up to the end of the block with the last decided token.
    """
    console = console or Console()
    width = len(str(trace.nfe))
    is_revised = any(len(of_position) > 1 for of_position in trace.changes)
    for number in range(1, trace.nfe + 1):
        is_mask = [text is None for of_position in trace.changes for step, text in of_position if step == number - 1]
        counts = f"+{is_mask.count(False)}" + (f" -{is_mask.count(True)}" if any(is_mask) else "")
        head = f"pass {number:{width}}/{trace.nfe}  {counts:<{8 if is_revised else 4}}  "
        console.print(Text.assemble(head, _canvas(trace, number)), soft_wrap=True)


def _canvas(trace: DecodeTrace, number: int) -> Text:
    """Returns the text of the canvas after `number` passes."""
    standing = [trace.standing(position, number) for position in range(len(trace.changes))]
    last = max((position for position, (_, text) in enumerate(standing) if text is not None), default=0)
    end = next(block.stop for block in trace.blocks if last in block) if number < trace.nfe else last + 1
    # Some tokenizers keep spaces in their tokens. Line breaks are escaped, so that each pass is one line.
    space = Text("" if any((text or "")[:1].isspace() for change in trace.changes for _, text in change) else " ")
    words = (
        Text(_MASK) if text is None else Text(printable(text).replace("\n", "\\n"), pass_style(step, trace.nfe))
        for step, text in standing[:end]
    )
    return space.join(words)


def pass_style(step: int, num_passes: int) -> str:
    """Returns rich's style for a token that pass `step` of `num_passes` committed, from 0 on; none for -1."""
    return "" if step < 0 else f"#111111 on {RAMP[round(step / max(num_passes - 1, 1) * (len(RAMP) - 1))]}"


def printable(text: str) -> str:
    """Returns the text with the names of control characters in their place.

    With control characters a model could take over a terminal. Newlines stay, a tab is four spaces, and a carriage
    return, of which some texts have one before each newline, is left out.
    """
    text = text.replace("\t", "    ").replace("\r", "")
    return "".join(repr(char)[1:-1] if _is_control(char) else char for char in text)


def _is_control(char: str) -> bool:
    return char != "\n" and (unicodedata.category(char) in ("Cc", "Cs") or char in _DIRECTIONS)
