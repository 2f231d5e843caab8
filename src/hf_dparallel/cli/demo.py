# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel demo`: the whole method on the bundled teacher."""

from collections.abc import Sequence

from ..demo.pipeline import DemoConfig, run_demo
from .arguments import CommandParser, OutputArguments
from .console import write_json


def make_parser() -> CommandParser:
    """The arguments of the command."""
    return CommandParser("demo", [DemoConfig, OutputArguments])


def run(argv: Sequence[str]) -> None:
    """Runs the demo; its report is also in the output folder."""
    config, output = make_parser().parse(argv)
    write_json(run_demo(config), output.json)
