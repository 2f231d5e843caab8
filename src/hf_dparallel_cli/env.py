# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel env`: prints what to attach to a bug report."""

import click


@click.command()
def env_command() -> None:
    """Show versions and devices, for bug reports."""
    from hf_dparallel.environment import describe_environment

    for name, value in describe_environment().items():
        if isinstance(value, list):
            value = ", ".join(value) or "none"
        click.echo(f"- {name}: {value}")
