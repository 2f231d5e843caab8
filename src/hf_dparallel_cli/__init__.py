# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel <command>`. A command is a file: its options above its function, which imports the libraries it needs.

So `--help` and most usage errors come at once, where `import hf_dparallel` takes seconds.

Exit codes: 0 for success, 2 for wrong usage (unknown options, missing or bad values), 1 for a failure, 130 when
interrupted. A failure prints one line on stderr, or a traceback if the environment variable HF_DPARALLEL_DEBUG is 1.
"""

import os
import sys
from collections.abc import Sequence

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
from .options import config_option
from .play import play_command
from .push import push_command
from .serve import serve_command
from .train import train_command
from .trajectories import trajectories_command


_COMMANDS = (
    *(demo_command, trajectories_command, generate_command, chat_command, serve_command, evaluate_command),
    *(calibrate_command, inspect_command, play_command, push_command, export_command, convert_command),
    *(models_command, env_command),
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
    name = words[0] if words and words[0] in program.commands else ""
    title = f"hf-dparallel {name}".rstrip()
    # No progress bars of less than a second, and few lines of them in a file.
    os.environ.setdefault("TQDM_DELAY", "1")
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_MININTERVAL", "30")
    try:
        program.main(words, "hf-dparallel", standalone_mode=False)
        return 0
    except click.Abort:
        click.echo(f"{title}: interrupted", err=True)
        return 130
    except (click.UsageError, SettingError) as error:
        text = error.format_message() if isinstance(error, click.UsageError) else str(error)
        if isinstance(error, click.NoSuchOption):
            known = [str(param.name) for param in program.commands[name].params]
            text = f"{error.message} {suggest(error.option_name.lstrip('-'), known)}"
        click.echo(f"{title}: error: {' '.join(text.split())} (`{title} --help` lists the options)", err=True)
        return 2
    except Exception as error:
        if os.environ.get("HF_DPARALLEL_DEBUG"):
            raise
        text = " ".join(str(error).split())
        # Errors with messages for users; others are shown with their type.
        if not text or not isinstance(error, ValueError | OSError | ImportError | FloatingPointError):
            text = f"{type(error).__name__}: {text} (HF_DPARALLEL_DEBUG=1 shows the traceback)"
        click.echo(f"{title}: error: {text}", err=True)
        return 1
