# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel benchmark`: the speed of decoding on this machine."""

from collections.abc import Sequence

from ..evaluation.benchmark import BenchmarkArguments, describe_benchmark, run_benchmark
from .arguments import CommandParser, OutputArguments
from .console import say, write_json


def make_parser() -> CommandParser:
    """The arguments of the command."""
    return CommandParser("benchmark", [BenchmarkArguments, OutputArguments])


def run(argv: Sequence[str]) -> None:
    """Prints a table of decoding speeds."""
    arguments, output = make_parser().parse(argv)
    result = run_benchmark(arguments)
    say(describe_benchmark(result))
    write_json(result, output.json)
