# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel env`: prints what to attach to a bug report."""

from typing import Any

import click

from .options import common_options


@click.command()
@common_options
def env_command() -> dict[str, Any]:
    """Show versions and devices, for bug reports."""
    from hf_dparallel.environment import describe_environment

    environment = describe_environment()
    for name, value in environment.items():
        click.echo(f"- {name}: {', '.join(value) or 'none' if isinstance(value, list) else value}")
    return environment
