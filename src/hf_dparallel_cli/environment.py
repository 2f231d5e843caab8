# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Changes to the process while a command runs: environment variables, progress bars and warnings."""

import logging
import os
import sys
import warnings
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import click


_LIBRARIES = r"(accelerate|bitsandbytes|datasets|peft|torch|transformers|trl)\b"
# An environment variable, so that child processes inherit it.
QUIET = "HF_DPARALLEL_QUIET"
# The packages of commands that need no library.
_PACKAGES = {"models": "hf_dparallel_cli"}


def import_command(name: str, title: str) -> ModuleType:
    """Imports the module of a command, and shows a notice in a terminal meanwhile."""
    shows = sys.stderr.isatty() and not os.environ.get(QUIET)
    if shows:
        print(f"{title}: loading libraries ...", end="", file=sys.stderr, flush=True)
    try:
        return import_module(f"{_PACKAGES.get(name, 'hf_dparallel.cli')}.{name}_command")
    finally:
        if shows:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def set_variables(ctx: click.Context, **values: Any) -> None:
    """Sets environment variables until the command ends, because the process may continue."""
    for name, value in values.items():
        before = os.environ.get(name)
        back = partial(os.environ.pop, name, None) if before is None else partial(os.environ.update, {name: before})
        ctx.call_on_close(back)
        os.environ[name] = str(value)


def quieten(ctx: click.Context, is_quiet: bool) -> None:
    """Silences progress bars in files, and warnings of libraries that users cannot act on."""
    # Bars appear after a second, not while a small model loads. Those of datasets would interrupt ours at each shard.
    delay = os.environ.get("TQDM_DELAY", "1")
    variables = {QUIET: "1" if is_quiet else "", "TQDM_DELAY": delay, "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    if is_quiet:
        variables["TRANSFORMERS_VERBOSITY"] = "error"
    if is_quiet or not sys.stderr.isatty():
        variables |= dict.fromkeys(("TQDM_DISABLE", "HF_HUB_DISABLE_PROGRESS_BARS"), "1")
    set_variables(ctx, **variables)
    if not os.environ.get("HF_DPARALLEL_DEBUG"):
        ctx.with_resource(warnings.catch_warnings())
        for category in (FutureWarning, DeprecationWarning, UserWarning):
            warnings.filterwarnings("ignore", category=category, module=_LIBRARIES)
        logger = logging.getLogger("bitsandbytes")
        ctx.call_on_close(partial(logger.setLevel, logger.level))
        logger.setLevel(logging.ERROR)
