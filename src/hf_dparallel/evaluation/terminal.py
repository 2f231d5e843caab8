# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""An answer on the terminal, its tokens coloured by the pass at which they were committed."""

from collections.abc import Sequence


# From blue (first pass) over green to red (last), in the 256 colours that every terminal has.
_RAMP = (27, 33, 39, 45, 50, 48, 46, 82, 118, 154, 190, 226, 220, 214, 208, 202, 196)


def color_by_commit_step(tokens: Sequence[str], commit_step: Sequence[int], num_passes: int) -> str:
    """Joins `tokens` with spaces, each in the colour of its `commit_step` out of `num_passes`."""
    return " ".join(
        _colored(token, step / max(num_passes - 1, 1)) for token, step in zip(tokens, commit_step, strict=True)
    )


def color_legend(num_passes: int) -> str:
    """A bar of the colours from the first to the last pass."""
    bar = "".join(f"\033[48;5;{color}m \033[0m" for color in _RAMP)
    return f"pass 1 {bar} pass {num_passes}"


def _colored(text: str, fraction: float) -> str:
    color = _RAMP[round(min(max(fraction, 0.0), 1.0) * (len(_RAMP) - 1))]
    return f"\033[38;5;{color}m{text}\033[0m"
