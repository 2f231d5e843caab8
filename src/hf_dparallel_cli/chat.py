# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel chat`: a conversation with a model in the terminal."""

import sys
from typing import Any

import click

from .console import note
from .options import model_options, seed_option, settings_options


_HELP = "/clear forgets the conversation, /exit or Ctrl-D ends the program, Ctrl-C stops an answer."


@click.command()
@model_options
@click.option("--system_prompt", help="System message at the beginning of the conversation.")
@settings_options
@seed_option
def chat_command(source: dict[str, Any], system_prompt: str | None, settings: dict[str, Any], seed: int) -> None:
    """Talk to a model in the terminal.

    Each line is a message. /clear forgets the conversation, /exit or Ctrl-D ends the program, Ctrl-C stops an answer.

    Example: hf-dparallel chat demo-student
    """
    import torch

    from hf_dparallel.data.prompts import encode_chat
    from hf_dparallel.generation.configuration import resolve

    from .answer_streamer import AnswerStreamer, answer, describe_cost
    from .loading import load_model, read_settings

    given = read_settings(settings)
    model, tokenizer = load_model(**source)
    if tokenizer.chat_template is None:
        raise ValueError(
            "The model has no chat template: it continues text and cannot chat. Use `hf-dparallel generate`."
        )
    recipe = resolve(model, given, tokenizer)
    if recipe.is_infilling:
        raise click.UsageError("`max_new_tokens` must be a positive integer, got 0.")
    generator = torch.Generator(model.device).manual_seed(seed)
    start = [{"role": "system", "content": system_prompt}] if system_prompt else []
    history = list(start)
    if sys.stdin.isatty():
        note(f"Chat with {source['adapter'] or source['model']}. {_HELP}")
    while (text := read_line()) not in (None, "/exit", "/quit", "exit", "quit"):
        if text == "/clear":
            history = list(start)
            note("The conversation is forgotten.")
        elif text:
            messages = [*history, {"role": "user", "content": text}]
            streamer = AnswerStreamer(tokenizer)
            try:
                prompt_ids = encode_chat(tokenizer, messages)
                figures = answer(model, tokenizer, prompt_ids, recipe, generator, streamer)
                note(f"({describe_cost(figures)}, {figures['latency_s']:.1f} s)")
            except KeyboardInterrupt:
                streamer.end()
                note("(stopped)")
            except (ValueError, FloatingPointError) as error:
                note(f"Error: {' '.join(str(error).split())}")
            # A stopped answer stays in the conversation.
            if streamer.text:
                history = [*messages, {"role": "assistant", "content": streamer.text}]


def read_line() -> str | None:
    """Returns the next line of stdin without the spaces around it, or `None` after the last one."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None
