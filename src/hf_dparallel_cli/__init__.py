# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel <command>`: finds the command and runs it.

These modules are not in the package, whose import takes seconds, so that help and wrong usage are answered at once. A
command is a module of `hf_dparallel.cli`, which is imported when it is used.

Exit codes: 0 for success, 2 for wrong usage (unknown flags, missing or bad values), 1 for a failure, 130 when
interrupted. A failure is one line on stderr; with the environment variable HF_DPARALLEL_DEBUG=1, a traceback.
"""

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from types import ModuleType

from .completion import completion_script
from .usage import Usage, UsageError, did_you_mean, fail


COMMANDS = {
    "demo": "distil the bundled teacher and compare it with its student",
    "trajectories": "let a teacher answer the prompts of a dataset, and keep the right answers",
    "train": "certainty-forcing distillation on trajectories",
    "generate": "answer one prompt",
    "chat": "talk to a model in the terminal",
    "serve": "answer requests of OpenAI clients over HTTP",
    "evaluate": "measure accuracy and cost of decoding on a dataset, or with --tasks or --preset on benchmarks",
    "inspect": "step through a decode, in the terminal or on a page, and draw how certainty grows",
    "calibrate": "find the fastest decoding settings that keep the accuracy",
    "report": "compare evaluations, if they can be compared",
    "push": "publish an adapter, a model or trajectories on the Hub, with a card",
    "env": "show versions and devices, for bug reports",
}
# Commands whose module has another name: one named `inspect` would hide that of Python.
_MODULES = {"inspect": "inspect_decode"}
_LIBRARIES = r"(accelerate|bitsandbytes|datasets|peft|torch|transformers|trl)\b"
# In the environment, so that processes which a command starts know it, too.
QUIET = "HF_DPARALLEL_QUIET"
# Errors whose message is written for users. Of any other, the type is shown too.
_EXPECTED_ERRORS = (ValueError, OSError, ImportError, FloatingPointError)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code. Wrong usage and `--help` raise `SystemExit`, as argparse does."""
    try:
        try:
            return _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            print(end="", flush=True)
    except BrokenPipeError:
        # Who reads the output, such as `head`, has seen enough. Nothing may be written at the end of the process.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(argv: list[str]) -> int:
    parser = _make_parser()
    if argv and argv[0][0:1] != "-" and argv[0] not in COMMANDS:
        parser.error(f"invalid choice: {argv[0]!r}{did_you_mean(argv[0], COMMANDS)}. Commands: {', '.join(COMMANDS)}")
    arguments = parser.parse_args(argv[: 2 if argv[:1] == ["--completion"] else 1])
    name = arguments.command
    if arguments.version:
        print(f"hf-dparallel {version('hf-dparallel')}")
        return 0
    if arguments.completion:
        print(completion_script(arguments.completion, {name: Usage(name, "").names() for name in COMMANDS}), end="")
        return 0
    if name is None:
        parser.print_help()
        return 0
    if "--help_all" not in argv:
        Usage(name, COMMANDS[name]).check(argv[1:])
    _quieten(is_quiet="--quiet" in argv)
    try:
        _load(name).run(argv[1:])
    except KeyboardInterrupt:
        print(f"hf-dparallel {name}: interrupted", file=sys.stderr)
        return 130
    except UsageError as error:
        fail(f"hf-dparallel {name}", _one_line(error))
    except Exception as error:
        print(end="", flush=True)  # raises the same error again if it was in the output
        if os.environ.get("HF_DPARALLEL_DEBUG"):
            raise
        print(f"hf-dparallel {name}: error: {_one_line(error)}", file=sys.stderr)
        return 1
    return 0


def module_of(name: str) -> str:
    """The module of a command."""
    return f"hf_dparallel.cli.{_MODULES.get(name, name)}"


def _load(name: str) -> ModuleType:
    """Imports the module of a command, and says so meanwhile at a terminal."""
    shows = sys.stderr.isatty() and not os.environ.get(QUIET)
    if shows:
        print(f"hf-dparallel {name}: loading libraries ...", end="", file=sys.stderr, flush=True)
    try:
        return import_module(module_of(name))
    finally:
        if shows:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _quieten(is_quiet: bool) -> None:
    """Silences what says nothing about the user's work: bars in files, and warnings of libraries about themselves."""
    os.environ[QUIET] = "1" if is_quiet else ""
    if is_quiet:
        os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    if is_quiet or not sys.stderr.isatty():
        os.environ |= dict.fromkeys(("TQDM_DISABLE", "HF_HUB_DISABLE_PROGRESS_BARS"), "1")
    # One for each shard and column, in the middle of ours.
    os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
    if not os.environ.get("HF_DPARALLEL_DEBUG"):
        for category in (FutureWarning, DeprecationWarning, UserWarning):
            warnings.filterwarnings("ignore", category=category, module=_LIBRARIES)
        logging.getLogger("bitsandbytes").setLevel(logging.ERROR)


def _make_parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    parser = argparse.ArgumentParser(
        prog="hf-dparallel",
        usage="hf-dparallel <command> [--config FILE] [--json FILE] [options]",
        description="Masked diffusion language models that decode many tokens per forward pass.",
        epilog="\n".join(
            ["commands:"]
            + [f"  {name:{width}}  {text}" for name, text in COMMANDS.items()]
            + ["", "`hf-dparallel <command> --help` lists the options of a command."]
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    parser.add_argument("--completion", choices=["bash", "zsh"], help="show what completes commands in a shell")
    parser.add_argument("command", nargs="?", choices=COMMANDS, help=argparse.SUPPRESS)
    return parser


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, _EXPECTED_ERRORS) and text:
        return text
    return f"{type(error).__name__}: {text} (HF_DPARALLEL_DEBUG=1 shows where)"
