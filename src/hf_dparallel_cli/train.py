# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel train`: certainty-forcing distillation on trajectories.

Its options are the fields of dataclasses, most of them of transformers and TRL, whose parser reads them.
"""

import click

from .options import import_option, say_loading


@click.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True},
    short_help="Distil a student by certainty forcing.",
)
@import_option
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def train_command(words: tuple[str, ...]) -> None:
    """Runs the command on the words, which the parser of the dataclasses reads."""
    if not {"-h", "--help"}.intersection(words):
        say_loading("the libraries of the training")
    from .training import read_arguments, train

    train(*read_arguments(words))
