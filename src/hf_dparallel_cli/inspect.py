# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel inspect`: shows a decode pass by pass."""

from pathlib import Path
from textwrap import shorten
from typing import Any

import click

from .options import decoding_options, prompt_options


@click.command()
@decoding_options
@prompt_options
@click.option("--output_file", type=click.Path(dir_okay=False), help="HTML page. Without it, every pass is printed.")
def inspect_command(output_file: str | None, **options: Any) -> None:
    """Step through a decode, in the terminal or on a page.

    Example: hf-dparallel inspect demo-student 'Mia has 14 pens and finds 6. How many?' --output_file page.html
    """
    from hf_dparallel.inspection.page import write_page
    from hf_dparallel.inspection.text import print_answer, print_passes
    from hf_dparallel.inspection.trace import trace_decode

    from .loading import encode_prompt, load_answerer, read_prompt

    text, name = read_prompt(options), options["adapter"] or options["model"]
    answerer = load_answerer(options)
    prompt_ids = encode_prompt(answerer, text, options["raw"])
    trace = trace_decode(answerer.model, answerer.tokenizer, prompt_ids, answerer.config, name, answerer.seed)
    if output_file is None:
        print_passes(trace)
    print_answer(trace)
    if output_file is not None:
        Path(output_file).parent.mkdir(parents=True, exist_ok=True)
        write_page([trace], output_file, f"{name}: {shorten(text, 60)}")
        click.echo(f"Page: {output_file}")
