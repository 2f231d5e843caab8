# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What commands write on the screen."""

import logging
import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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


def note_progress(title: str, done: int, total: int, since: float, unit: str, **more: Any) -> None:
    """Notes what a bar of tqdm would show, its speed and the time left among it, where no terminal shows one."""
    from tqdm import tqdm

    if not sys.stderr.isatty():
        note(tqdm.format_meter(done, total, time.monotonic() - since, ncols=0, prefix=title, unit=unit, **more))


def echo_table(figures: Mapping[str, Any]) -> None:
    """Prints names and values in two columns."""
    width = max(map(len, figures))
    for name, value in figures.items():
        click.echo(f"{name:{width}}  {to_text(value)}")


def to_text(value: Any) -> str:
    """Writes a figure as text: a number with four digits, a list with commas."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(to_text, value)) or "none"
    return str(value)


def make_folder(path: str | Path | None, option: str = "output_dir") -> None:
    """Makes the folder that results will go to, if one is named, before they are computed."""
    if path is None:
        return
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"`{option}={path}` cannot be made: {error.strerror}. Name another folder.") from error


@contextmanager
def quiet_libraries(is_quiet: bool) -> Iterator[None]:
    """Silences progress bars in files, and warnings of libraries that users cannot act on, while a command runs."""
    click.get_current_context().meta[_QUIET] = is_quiet
    # Bars appear after a second, not while a small model loads. Those of datasets would interrupt ours at each shard.
    variables = {"TQDM_DELAY": os.environ.get("TQDM_DELAY", "1"), "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    if is_quiet:
        variables["TRANSFORMERS_VERBOSITY"] = "error"
    if is_quiet or not sys.stderr.isatty():
        variables |= dict.fromkeys(("TQDM_DISABLE", "HF_HUB_DISABLE_PROGRESS_BARS"), "1")
    before, logger = dict(os.environ), logging.getLogger("bitsandbytes")
    level = logger.level
    try:
        os.environ.update(variables)
        with warnings.catch_warnings():
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
