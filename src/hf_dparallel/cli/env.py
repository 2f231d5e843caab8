# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel env`: what to attach to a bug report."""

from collections.abc import Sequence

from ..environment import describe_environment
from .arguments import CommandParser, OutputArguments
from .console import say, write_json


def make_parser() -> CommandParser:
    """The arguments of the command."""
    return CommandParser("env", [OutputArguments])


def run(argv: Sequence[str]) -> None:
    """Prints the environment."""
    (output,) = make_parser().parse(argv)
    environment = describe_environment()
    for name, value in environment.items():
        say(f"- {name}: {', '.join(value) or 'none' if isinstance(value, list) else value}")
    write_json(environment, output.json)
