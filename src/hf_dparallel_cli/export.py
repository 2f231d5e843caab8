# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel export`: writes a student for a serving engine."""

from typing import Any

import click

from .options import OUTPUT_FOLDER, say_loading, settings_options


@click.command()
@click.argument("student", type=click.Path())
@click.option("--engine", type=click.Choice(("sglang", "lmdeploy")), required=True, help="LMDeploy has SDAR only.")
@click.option("--output_dir", type=OUTPUT_FOLDER, required=True, help="New folder for the merged weights.")
@click.option("--base_model", help="Base model, whose code is copied. By default the one that the student names.")
@settings_options
def export_command(student: str, engine: str, output_dir: str, base_model: str | None, **settings: Any) -> None:
    """Write an SDAR or LLaDA2 student for a serving engine.

    STUDENT is a model or adapter: its name on the Hub, or a folder. The line that starts the engine is printed.

    Example: hf-dparallel export user/sdar-student --engine sglang --output_dir runs/exported
    """
    say_loading(student)
    from hf_dparallel.hub.export import export_for_engine

    from .loading import read_settings

    given = read_settings(settings)
    click.echo(export_for_engine(student, engine, output_dir, base_model=base_model, generation_config=given))
