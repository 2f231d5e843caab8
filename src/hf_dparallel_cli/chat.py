# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel chat`: a conversation with a model in the terminal."""

import sys
from typing import Any

import click

from .options import decoding_options


@click.command()
@decoding_options
@click.option("--system_prompt", help="System message at the beginning of the conversation.")
def chat_command(system_prompt: str | None, **options: Any) -> None:
    """Talk to a model in the terminal.

    Each line is a message. /clear forgets the conversation.

    Example: hf-dparallel chat demo-student
    """
    from hf_dparallel.data.chats import encode_messages
    from hf_dparallel.generation.answerer import row_generator

    from .answer_streamer import AnswerStreamer, answer, describe_cost
    from .loading import load_answerer

    answerer = load_answerer(options)
    if answerer.tokenizer.chat_template is None:
        raise ValueError(
            "The model has no chat template: it continues text and cannot chat. Use `hf-dparallel generate`."
        )

    generator = row_generator(answerer.model.device, answerer.seed, row=0)
    start = []
    if system_prompt:
        start.append({"role": "system", "content": system_prompt})
    history = list(start)
    if sys.stdin.isatty():
        click.echo(
            "/clear forgets the conversation, /exit or Ctrl-D ends the program, Ctrl-C stops an answer.", err=True
        )
    while (text := read_line()) not in (None, "/exit", "/quit", "exit", "quit"):
        if text == "/clear":
            history = list(start)
            click.echo("The conversation is forgotten.", err=True)
        elif text:
            messages = [*history, {"role": "user", "content": text}]
            streamer = AnswerStreamer(answerer)
            try:
                prompt_ids = encode_messages(answerer, messages)
                figures = answer(answerer, prompt_ids, generator, streamer)
                click.echo(f"({describe_cost(figures)}, {figures['latency_s']:.1f} s)", err=True)
            except KeyboardInterrupt:
                streamer.end()
                click.echo("(stopped)", err=True)
            except (ValueError, FloatingPointError) as error:
                click.echo(f"Error: {' '.join(str(error).split())}", err=True)
            # A stopped answer stays in the conversation, thoughts do not.
            if streamer.shown[1]:
                history = [*messages, {"role": "assistant", "content": streamer.shown[1]}]


def read_line() -> str | None:
    """Returns the next line of stdin without the spaces around it, or `None` after the last one."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None
