# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What the commands write on the screen, and where they put files."""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from hf_dparallel_cli.environment import QUIET


def say(text: str) -> None:
    """Prints a line of output."""
    print(text, flush=True)  # noqa: T201


def note(text: str) -> None:
    """Prints a line about the output, which is not part of it, on stderr; with `--quiet`, nowhere."""
    if not os.environ.get(QUIET):
        print(text, file=sys.stderr, flush=True)  # noqa: T201


def note_progress(what: str, done: int, total: int, since: float, unit: str, **more: Any) -> None:
    """Notes what a bar of tqdm would show, its speed and the time left among it, where no terminal shows one."""
    if not sys.stderr.isatty():
        note(tqdm.format_meter(done, total, time.monotonic() - since, ncols=0, prefix=what, unit=unit, **more))


def say_table(figures: Mapping[str, Any]) -> None:
    """Prints names and values in two columns."""
    width = max(map(len, figures))
    for name, value in figures.items():
        say(f"{name:{width}}  {shown(value)}")


def make_folder(path: str | Path | None, argument: str = "output_dir") -> None:
    """Makes the folder that results will go to, if one is named, before they are computed."""
    if path is None:
        return
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"`{argument}={path}` cannot be made: {error.strerror}. Name another folder.") from error


def shown(value: Any) -> str:
    """Writes a figure as text: a number with four digits, a list with commas."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(shown, value)) or "none"
    return str(value)
