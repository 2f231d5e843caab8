# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel generate`: answers one prompt."""

from typing import Any

import click

from .options import decoding_options, json_option, prompt_options


@click.command()
@decoding_options
@prompt_options
@click.option("--stream", is_flag=True, help="Print the text while it is decoded.")
@json_option
def generate_command(stream: bool, **options: Any) -> dict[str, Any]:
    """Answer one prompt.

    Example: hf-dparallel generate demo-student 'Mia has 14 pens, finds 6. How many?'
    """
    from hf_dparallel.generation.answerer import row_generator

    from .answer_streamer import AnswerStreamer, answer, describe_cost
    from .loading import encode_question, load_answerer, read_prompt

    text = read_prompt(options)
    answerer = load_answerer(options)
    prompt_ids = encode_question(answerer, text, options["raw"])
    # As for the first row in `inspect`, which so shows this decode.
    generator = row_generator(answerer.model.device, answerer.seed, row=0)
    figures = answer(answerer, prompt_ids, generator, AnswerStreamer(answerer) if stream else None)
    if not stream:
        click.echo(figures["text"])
    click.echo(describe_cost(figures), err=True)
    return {"prompt": text} | figures
