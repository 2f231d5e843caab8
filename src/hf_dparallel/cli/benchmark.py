# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel benchmark`: the speed of decoding on this machine."""

from collections.abc import Sequence

from ..evaluation.benchmark import BenchmarkArguments, run_benchmark
from . import COMMANDS
from .arguments import CommandParser, OutputArguments
from .console import say, write_json


def run(argv: Sequence[str]) -> None:
    """Prints a table of decoding speeds."""
    parser = CommandParser("benchmark", COMMANDS["benchmark"], [BenchmarkArguments, OutputArguments])
    arguments, output = parser.parse(argv)
    write_json(run_benchmark(arguments, say), output.json)
