# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel <command>`: finds the command and runs it.

These modules are outside of the package `hf_dparallel`, whose import takes seconds, to show help and usage errors
immediately. A command is a row of [`COMMANDS`] and a module of `hf_dparallel.cli`, which is imported when it runs.

Exit codes: 0 for success, 2 for wrong usage (unknown flags, missing or bad values), 1 for a failure, 130 when
interrupted. A failure prints one line on stderr, or a traceback if the environment variable HF_DPARALLEL_DEBUG is 1.
"""

import os
import sys
from collections.abc import Sequence

import click
from click.shell_completion import shell_complete

from .commands import COMMANDS


_PROGRAM = "hf-dparallel"
# A shell sets this variable to ask a click program for completions.
_COMPLETION = "_HF_DPARALLEL_COMPLETE"
# Errors with messages for users. Other errors are shown with their type.
_EXPECTED_ERRORS = (ValueError, OSError, ImportError, FloatingPointError)


class Program(click.Group):
    """All commands, in the order of the table."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of the commands."""
        return list(self.commands)


def _show_completion(ctx: click.Context, param: click.Parameter, shell: str | None) -> None:
    if shell is not None:
        ctx.exit(shell_complete(PROGRAM, {}, _PROGRAM, _COMPLETION, f"{shell}_source"))


@click.group(
    _PROGRAM,
    cls=Program,
    commands=COMMANDS,
    invoke_without_command=True,
    options_metavar=None,
    subcommand_metavar="<command> [--config FILE] [--json FILE] [options]",
    epilog="`hf-dparallel <command> --help` lists the options of a command.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name=_PROGRAM, message="%(prog)s %(version)s")
@click.option(
    "--completion",
    type=click.Choice(["bash", "zsh", "fish"]),
    is_eager=True,
    expose_value=False,
    callback=_show_completion,
    help="Print the completion script for a shell.",
)
@click.pass_context
def PROGRAM(ctx: click.Context) -> None:
    """Make masked diffusion language models decode many tokens per forward pass."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    try:
        try:
            if instruction := os.environ.get(_COMPLETION):
                return shell_complete(PROGRAM, {}, _PROGRAM, _COMPLETION, instruction)
            return _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            print(end="", flush=True)
    except BrokenPipeError:
        # The reader of the output, such as `head`, has closed it. Flushing it at exit would raise the error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(argv: list[str]) -> int:
    title = " ".join([_PROGRAM, *argv[:1]]) if argv[:1] and argv[0] in COMMANDS else _PROGRAM
    try:
        with PROGRAM.make_context(_PROGRAM, argv) as ctx:
            PROGRAM.invoke(ctx)
    except click.exceptions.Exit as end:
        return end.exit_code
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        # With a folder, finished requests of the harness are kept, too.
        continues = argv[:1] == ["trajectories"] or {"--tasks", "--output_dir"} <= set(argv)
        advice = ". The same command continues the run" if continues else ""
        if argv[:1] == ["train"]:
            advice = ". Add --resume_from_checkpoint true to continue from the last checkpoint"
        print(f"{title}: interrupted{advice}", file=sys.stderr)
        return 130
    except click.UsageError as error:
        return fail(title, error)
    except Exception as error:
        print(end="", flush=True)  # raises a `BrokenPipeError` here if that was the error
        if os.environ.get("HF_DPARALLEL_DEBUG"):
            raise
        print(f"{title}: error: {_one_line(error)}", file=sys.stderr)
        return 1
    return 0


def fail(title: str, error: click.UsageError) -> int:
    """Prints a usage error in one line, and returns the exit code."""
    text = " ".join(error.format_message().split())
    print(f"{title}: error: {text} (`{title} --help` lists the options)", file=sys.stderr, flush=True)
    return error.exit_code


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        text = f"`{error.filename}`: {error.strerror}."
    if isinstance(error, _EXPECTED_ERRORS) and text:
        return text
    return f"{type(error).__name__}: {text} (HF_DPARALLEL_DEBUG=1 shows the traceback)"
