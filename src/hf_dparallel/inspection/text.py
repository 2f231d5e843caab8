# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A decode on the terminal, its tokens coloured by the pass at which they were committed."""

from collections.abc import Iterator

from ..terminal import printable
from .trace import DecodeTrace


# From blue (first pass) over green to red (last), in the 256 colours that every terminal has.
_RAMP = (27, 33, 39, 45, 50, 48, 46, 82, 118, 154, 190, 226, 220, 214, 208, 202, 196)
_MASK = "░"


def answer_text(trace: DecodeTrace, color: bool) -> str:
    """The title of a decode, with a legend of the colours, and its answer."""
    title = f"{trace.name}, {trace.nfe} passes, {trace.tokens_per_forward:.2f} tokens per pass"
    legend = f"   {_legend(trace.nfe)}" if color else ""
    return f"{title}{legend}\n{_canvas(trace, trace.nfe, color)}"


def pass_lines(trace: DecodeTrace, color: bool) -> Iterator[str]:
    """A line for each pass: its number, how many tokens it committed, and what stands after it.

    Masks are shown up to the end of the block of the last token that stands.
    """
    width = len(str(trace.nfe))
    for number in range(1, trace.nfe + 1):
        after = [trace.standing(position, number) for position in range(len(trace.tokens))]
        committed = sum(step == number - 1 and text is not None for step, text in after)
        revoked = sum(step == number - 1 and text is None for step, text in after)
        counts = f"+{committed} -{revoked}" if revoked else f"+{committed}"
        canvas = _canvas(trace, number, color)
        yield f"pass {number:{width}}/{trace.nfe}  {counts:<{8 if trace.revised else 4}}  {canvas}"


def _canvas(trace: DecodeTrace, number: int, color: bool) -> str:
    """What stands after so many passes."""
    standing = [trace.standing(position, number) for position in range(len(trace.tokens))]
    last = max((position for position, (_, text) in enumerate(standing) if text is not None), default=0)
    end = next(block.stop for block in trace.blocks() if last in block) if number < trace.nfe else last + 1
    words = []
    for step, text in standing[:end]:
        # A line stays a line.
        word = _MASK if text is None else printable(text).replace("\n", "\\n")
        words.append(
            _colored(word, step / max(trace.nfe - 1, 1)) if color and text is not None and step >= 0 else word
        )
    # The tokens of some tokenizers bring their spaces along.
    return ("" if any(text[:1].isspace() for text in trace.tokens) else " ").join(words)


def _legend(num_passes: int) -> str:
    """A bar of the colours from the first to the last pass."""
    bar = "".join(f"\033[48;5;{color}m \033[0m" for color in _RAMP)
    return f"pass 1 {bar} pass {num_passes}"


def _colored(text: str, fraction: float) -> str:
    color = _RAMP[round(min(max(fraction, 0.0), 1.0) * (len(_RAMP) - 1))]
    return f"\033[38;5;{color}m{text}\033[0m"
