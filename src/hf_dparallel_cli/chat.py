# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel chat`: a conversation with a model in the terminal."""

import sys
from typing import TYPE_CHECKING, Any

import click

from .console import note
from .options import common_options, model_options, seed_option, settings_options


if TYPE_CHECKING:
    from transformers import PreTrainedModel

_HELP = "/clear forgets the conversation, /exit or Ctrl-D ends the program, Ctrl-C stops an answer."


@click.command()
@model_options
@click.option("--system_prompt", help="System message at the beginning of the conversation.")
@settings_options
@seed_option
@common_options
def chat_command(
    source: dict[str, Any], system_prompt: str | None, settings: dict[str, Any], seed: int
) -> dict[str, Any]:
    """Talk to a model in the terminal.

    Each line is a message. /clear forgets the conversation, /exit or Ctrl-D ends the program, Ctrl-C stops an answer.

    Example: hf-dparallel chat demo-student
    """
    import torch

    from hf_dparallel.data.prompts import encode_chat

    from .answer_streamer import AnswerStreamer, answer, describe_cost
    from .loading import load_model, read_settings, resolve_settings

    given = read_settings(settings)
    model, tokenizer = load_model(**source)
    if tokenizer.chat_template is None:
        raise ValueError(
            "The model has no chat template: it continues text and cannot chat. Use `hf-dparallel generate`."
        )
    recipe = resolve_settings(model, given, tokenizer)
    if recipe.is_infilling:
        raise click.UsageError("`max_new_tokens` must be a positive integer, got 0.")
    generator = torch.Generator(model.device).manual_seed(seed)
    start = [{"role": "system", "content": system_prompt}] if system_prompt else []
    history, answers = list(start), []
    if sys.stdin.isatty():
        note(f"Chat with {source['adapter'] or source['model']}. {_HELP}")
        if source["model"] in ("demo", "demo-student"):
            note("The bundled model knows problems about counting things. Ask it what it can do.")
    while (text := read_line()) not in (None, "/exit", "/quit", "exit", "quit"):
        if text == "/clear":
            history = list(start)
            note("The conversation is forgotten.")
        elif text.startswith("/") and text[1:].isalpha():
            note(f"There is no {text}. {_HELP}")
        elif text:
            messages = [*history, {"role": "user", "content": text}]
            streamer = AnswerStreamer(tokenizer)
            try:
                prompt_ids = encode_chat(tokenizer, messages)
                check_length(model, len(prompt_ids), recipe.max_new_tokens)
                with streamer:
                    answers.append(answer(model, tokenizer, prompt_ids, recipe, generator, streamer))
                note(f"({describe_cost(answers[-1])}, {answers[-1]['latency_s']:.1f} s)")
            except KeyboardInterrupt:
                note("(stopped)")
            except (ValueError, FloatingPointError) as error:
                note(f"Error: {' '.join(str(error).split())}")
            # A stopped answer stays in the conversation.
            if streamer.text:
                history = [*messages, {"role": "assistant", "content": streamer.text}]
    return {"answers": answers}


def read_line() -> str | None:
    """Returns the next line of stdin without the spaces around it, or `None` after the last one."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.strip() if line else None
    try:
        return input("> ").strip()
    except EOFError:
        click.echo()
        return None
    except KeyboardInterrupt:
        note("\n/exit or Ctrl-D ends the program.")
        return ""


def check_length(model: "PreTrainedModel", prompt_length: int, max_new_tokens: int) -> None:
    """Raises a `ValueError` if prompt and answer may be longer than what the model was trained for."""
    from hf_dparallel.generation.compatibility import longest_sequence

    longest = longest_sequence(model)
    if longest is not None and prompt_length + max_new_tokens > longest:
        raise ValueError(
            f"The conversation has {prompt_length} tokens and the answer may have {max_new_tokens}, together more "
            f"than the {longest} that the model was trained for. /clear forgets the conversation."
        )
