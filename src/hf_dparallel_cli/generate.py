# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel generate`: answers one prompt."""

from typing import Any

import click

from . import options
from .console import note


@click.command()
@options.model_options
@options.prompt_options
@options.raw_option
@click.option("--stream", is_flag=True, help="Print the text while it is decoded.")
@options.settings_options
@options.seed_option
@options.json_option
def generate_command(
    source: dict[str, Any], prompt: dict[str, Any], raw: bool, stream: bool, settings: dict[str, Any], seed: int
) -> dict[str, Any]:
    """Answer one prompt.

    Example: hf-dparallel generate demo-student 'Mia has 14 pens, finds 6. How many?'
    """
    from hf_dparallel.generation.answerer import row_generator
    from hf_dparallel.generation.configuration import resolve

    from .answer_streamer import AnswerStreamer, answer, describe_cost
    from .loading import encode_prompt, load_model, read_prompt, read_settings

    given, text = read_settings(settings), read_prompt(**prompt)
    model, tokenizer = load_model(**source)
    prompt_ids = encode_prompt(tokenizer, text, raw)
    # As for the first row in `inspect`, which so shows this decode.
    generator = row_generator(model.device, seed, row=0)
    streamer = AnswerStreamer(tokenizer) if stream else None
    figures = answer(model, tokenizer, prompt_ids, resolve(model, given, tokenizer), generator, streamer)
    if not stream:
        click.echo(figures["text"])
    note(describe_cost(figures))
    return {"prompt": text} | figures
