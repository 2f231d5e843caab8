# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel generate`: answers one prompt."""

from contextlib import nullcontext
from typing import Any

import click

from .console import note
from .options import common_options, model_options, prompt_options, seed_option, settings_options


@click.command()
@model_options
@prompt_options
@click.option("--raw", is_flag=True, help="Continue the prompt without the chat template.")
@click.option("--stream", is_flag=True, help="Print the text while it is decoded.")
@settings_options
@seed_option
@common_options
def generate_command(
    source: dict[str, Any], prompt: dict[str, Any], raw: bool, stream: bool, settings: dict[str, Any], seed: int
) -> dict[str, Any]:
    """Answer one prompt.

    Example: hf-dparallel generate demo-student 'Mia has 14 pens, finds 6. How many?'
    """
    from hf_dparallel.generation.answerer import row_generator

    from .answer_streamer import AnswerStreamer, answer, describe_cost
    from .loading import encode_prompt, load_model, read_prompt, read_settings, resolve_settings

    given, text = read_settings(settings), read_prompt(**prompt)
    model, tokenizer = load_model(**source)
    prompt_ids = encode_prompt(tokenizer, text, raw)
    recipe = resolve_settings(model, given, tokenizer)
    # As for the first row in `inspect`, which so shows this decode.
    generator = row_generator(model.device, seed, row=0)
    streamer = AnswerStreamer(tokenizer) if stream else None
    with streamer or nullcontext():
        figures = answer(model, tokenizer, prompt_ids, recipe, generator, streamer)
    if not stream:
        click.echo(figures["text"])
    note(describe_cost(figures))
    return {"prompt": text} | figures
