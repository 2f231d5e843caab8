# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel env`: what to attach to a bug report."""

from typing import Any

from hf_dparallel_cli.command import Flags

from ..environment import describe_environment
from .console import say, shown


def run(flags: Flags) -> dict[str, Any]:
    """Prints the environment."""
    environment = describe_environment()
    for name, value in environment.items():
        say(f"- {name}: {shown(value)}")
    return environment
