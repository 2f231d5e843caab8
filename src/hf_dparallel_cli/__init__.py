# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel <command>`. A command is a file: its options above its function, which imports the libraries it needs.

So `--help` and most usage errors come at once, where `import hf_dparallel` takes seconds.

Exit codes: 0 for success, 2 for wrong usage (unknown options, missing or bad values), 1 for a failure, 130 when
interrupted. A failure prints one line on stderr, or a traceback if the environment variable HF_DPARALLEL_DEBUG is 1.
"""

import os
import select
import sys
from collections.abc import Sequence
from contextlib import suppress

import click

from hf_dparallel_rules.settings import SettingError, suggest

from .calibrate import calibrate_command
from .chat import chat_command
from .convert import convert_command
from .demo import demo_command
from .env import env_command
from .evaluate import evaluate_command
from .export import export_command
from .generate import generate_command
from .inspect import inspect_command
from .models import models_command
from .options import config_option, import_files
from .play import play_command
from .push import push_command
from .serve import serve_command
from .train import train_command
from .trajectories import trajectories_command


_COMMANDS = (
    demo_command,
    trajectories_command,
    generate_command,
    chat_command,
    serve_command,
    evaluate_command,
    calibrate_command,
    inspect_command,
    play_command,
    push_command,
    export_command,
    convert_command,
    models_command,
    env_command,
)
for _command in _COMMANDS:
    config_option(_command)


@click.group(
    "hf-dparallel",
    commands=(*_COMMANDS, train_command),
    invoke_without_command=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 110,
        "show_default": True,
        # `--max-new-tokens` is read as `--max_new_tokens`.
        "token_normalize_func": lambda name: name.replace("-", "_"),
    },
)
@click.version_option(package_name="hf-dparallel", message="%(prog)s %(version)s")
@click.pass_context
def program(ctx: click.Context) -> None:
    """Make masked diffusion language models decode many tokens per forward pass."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    command: click.Command = program
    title = "hf-dparallel"
    if words and words[0] in program.commands:
        command = program.commands[words[0]]
        title = f"hf-dparallel {words[0]}"

    # No progress bars of less than a second, and few lines of them in a file.
    os.environ.setdefault("TQDM_DELAY", "1")
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_MININTERVAL", "30")

    try:
        import_files(words, program.commands.values())
        # Not `program.main`, which ends with 1 when the reader of a pipe has seen enough.
        with program.make_context("hf-dparallel", words) as context:
            program.invoke(context)
        return 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo(f"{title}: interrupted", err=True)
        return 130
    except (click.UsageError, SettingError) as error:
        text = " ".join(_usage(error, command).split())
        click.echo(f"{title}: error: {text} (`{title} --help` lists the options)", err=True)
        return 2
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _silence_closed_streams():
            return 0
        if os.environ.get("HF_DPARALLEL_DEBUG"):
            raise
        click.echo(f"{title}: error: {' '.join(_failure(error).split())}", err=True)
        return 1


def _usage(error: click.UsageError | SettingError, command: click.Command) -> str:
    """Describes wrong usage. An unknown option gets a hint at the one that is meant."""
    if not isinstance(error, click.NoSuchOption):
        return str(error) if isinstance(error, SettingError) else error.format_message()
    if command is program:
        return f"{error.message} Options stand after the command."
    known = [option.lstrip("-") for param in command.params for option in param.opts]
    return f"{error.message} {suggest(error.option_name.lstrip('-'), known)}"


def _failure(error: Exception) -> str:
    """Describes a failure: by its message, if that is for users, or else with its type."""
    text = str(error)
    if isinstance(error, UnicodeEncodeError) and error.encoding != "utf-8":
        return f"The output cannot be written as {error.encoding}. Set PYTHONIOENCODING=utf-8."
    if text and isinstance(error, ValueError | OSError | ImportError | FloatingPointError):
        return text
    return f"{type(error).__name__}: {text} (HF_DPARALLEL_DEBUG=1 shows the traceback)"


def _silence_closed_streams() -> bool:
    """Drops what is still written to stdout or stderr if nobody reads them any more; returns whether that is so."""
    is_closed = False
    for stream in (sys.stdout, sys.stderr):
        # One that another program has put there may have no descriptor.
        with suppress(OSError):
            state = select.poll()
            state.register(stream.fileno(), select.POLLERR)
            if state.poll(0):
                is_closed = True
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return is_closed
