# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What commands write on the screen."""

from collections.abc import Mapping
from typing import Any

import click


def note(text: str) -> None:
    """Prints a line about the output, which is not part of it, on stderr."""
    click.echo(text, err=True)


def echo_table(figures: Mapping[str, Any]) -> None:
    """Prints names and values in two columns."""
    width = max(map(len, figures))
    for name, value in figures.items():
        click.echo(f"{name:{width}}  {value:.4g}" if isinstance(value, float) else f"{name:{width}}  {value}")
