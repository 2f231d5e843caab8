# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel inspect`: shows a decode pass by pass."""

from pathlib import Path
from textwrap import shorten
from typing import Any

import click

from . import options


@click.command()
@options.model_options
@options.prompt_options
@options.raw_option
@click.option("--output_file", type=click.Path(dir_okay=False), help="HTML page. Without it, every pass is printed.")
@options.settings_options
@options.seed_option
def inspect_command(
    source: dict[str, Any],
    prompt: dict[str, Any],
    raw: bool,
    output_file: str | None,
    settings: dict[str, Any],
    seed: int,
) -> None:
    """Step through a decode, in the terminal or on a page.

    Example: hf-dparallel inspect demo-student 'Mia has 14 pens and finds 6. How many?' --output_file page.html
    """
    from hf_dparallel.inspection.page import write_page
    from hf_dparallel.inspection.text import print_answer, print_passes
    from hf_dparallel.inspection.trace import trace_decode

    from .loading import encode_prompt, load_model, read_prompt, read_settings

    given, text = read_settings(settings), read_prompt(**prompt)
    model, tokenizer = load_model(**source)
    name = source["adapter"] or source["model"]
    trace = trace_decode(model, tokenizer, encode_prompt(tokenizer, text, raw), given, name, seed)
    if output_file is None:
        print_passes(trace)
    print_answer(trace)
    if output_file is not None:
        Path(output_file).parent.mkdir(parents=True, exist_ok=True)
        write_page([trace], output_file, f"{name}: {shorten(text, 60)}")
        click.echo(f"Page: {output_file}")
