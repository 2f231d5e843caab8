# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel inspect`: shows a decode pass by pass."""

from textwrap import shorten
from typing import Any

import click

from .options import OUTPUT_FILE, decoding_options, prompt_options


@click.command()
@decoding_options
@prompt_options
@click.option("--output_file", type=OUTPUT_FILE, default="decode.html", help="HTML page to write.")
def inspect_command(output_file: str, **options: Any) -> None:
    """Write a page to step through a decode.

    Example: hf-dparallel inspect demo-student 'Mia has 14 pens and finds 6. How many?' --output_file page.html
    """
    from hf_dparallel.inspection.page import write_page
    from hf_dparallel.inspection.trace import trace_decode

    from .loading import encode_question, load_answerer, read_prompt

    text = read_prompt(options)
    answerer = load_answerer(options)
    prompt_ids = encode_question(answerer, text, options["raw"])

    name = options["adapter"] or options["model"]
    trace = trace_decode(answerer.model, answerer.tokenizer, prompt_ids, answerer.config, name, answerer.seed)
    write_page([trace], output_file, f"{name}: {shorten(text, 60)}")
    click.echo(f"{trace.nfe} passes, {trace.tokens_per_forward:.2f} tokens per pass. Page: {output_file}")
