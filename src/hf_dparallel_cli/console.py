# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What commands write on the screen."""

import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import click


_LIBRARIES = r"(accelerate|bitsandbytes|datasets|peft|torch|transformers|trl)\b"
_QUIET = "hf_dparallel.quiet"


def note(text: str) -> None:
    """Prints a line about the output, which is not part of it, on stderr; with `--quiet`, nowhere."""
    ctx = click.get_current_context(silent=True)
    if ctx is None or not ctx.meta.get(_QUIET):
        click.echo(text, err=True)


def echo_table(figures: Mapping[str, Any]) -> None:
    """Prints names and values in two columns."""
    width = max(map(len, figures))
    for name, value in figures.items():
        click.echo(f"{name:{width}}  {value:.4g}" if isinstance(value, float) else f"{name:{width}}  {value}")


def make_folder(path: str | Path | None, option: str = "output_dir") -> None:
    """Makes the folder that results will go to, if one is named, before they are computed."""
    if path is None:
        return
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"`{option}={path}` cannot be made: {error.strerror}. Name another folder.") from error


class Lines:
    """A stream in which each state of a progress bar has a line of its own."""

    def __init__(self, stream: Any):
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(text.replace("\r", "\n"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def quiet_libraries(is_quiet: bool) -> Iterator[None]:
    """Slows down progress bars in files, and silences warnings that users cannot act on, while a command runs."""
    click.get_current_context().meta[_QUIET] = is_quiet
    # Bars appear after a second, not while a small model loads, and in files every 30 seconds in a line of their own.
    variables = {"TQDM_DELAY": os.environ.get("TQDM_DELAY", "1"), "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    stream = sys.stderr
    if is_quiet:
        variables |= {"TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    elif not stream.isatty():
        variables |= {
            "TQDM_MININTERVAL": os.environ.get("TQDM_MININTERVAL", "30"),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }
        stream = Lines(stream)
    before, logger = dict(os.environ), logging.getLogger("bitsandbytes")
    level = logger.level
    try:
        os.environ.update(variables)
        with warnings.catch_warnings(), redirect_stderr(stream):
            if not os.environ.get("HF_DPARALLEL_DEBUG"):
                for category in (FutureWarning, DeprecationWarning, UserWarning):
                    warnings.filterwarnings("ignore", category=category, module=_LIBRARIES)
                logger.setLevel(logging.ERROR)
            yield
    finally:
        # Programs may run several commands.
        logger.setLevel(level)
        os.environ.clear()
        os.environ.update(before)
