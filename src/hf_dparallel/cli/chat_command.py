# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel chat`: talk to a model in the terminal."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import click
import torch
import yaml
from rich.console import Console
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_dparallel_cli.command import Flags
from hf_dparallel_rules.settings import SETTINGS, suggest

from ..demo import NAMES
from ..generation.compatibility import longest_sequence
from ..generation.configuration import DiffusionGenerationConfig
from ..inspection.text import legend
from .answer_streamer import AnswerStreamer
from .console import note, say
from .generate_command import answer, cost_of
from .loading import load_model, read_settings, resolve_settings


HELP = """\
/set NAME VALUE  changes a setting, for instance /set entropy_threshold 0.5; the value none is the model's own
/settings        shows the settings
/clear           forgets the conversation, as does /reset
/help            shows this
/exit            ends the program, as do /quit and Ctrl-D; Ctrl-C stops an answer"""
_COMMANDS = [line.split()[0] for line in HELP.splitlines()]


def run(flags: Flags) -> dict[str, Any]:
    """Answers lines from stdin until there are no more."""
    given = read_settings(flags)
    model, tokenizer = load_model(flags)
    chat = Chat(model, tokenizer, given, flags.seed, flags.system_prompt)
    if sys.stdin.isatty():
        name = f"{flags.adapter} on {flags.model}" if flags.adapter else flags.model
        note(f"Chat with {name}. /help shows the commands.")
        if flags.model in NAMES:
            note("The bundled model knows problems about counting things. Ask it what it can do.")
        if not flags.quiet:
            console = Console(stderr=True)
            console.print(legend(console, "Colours: first pass", "last pass"))
    for line in read_lines():
        try:
            if not chat.take(line):
                break
        except KeyboardInterrupt:
            continue
        except (ValueError, FloatingPointError, click.UsageError, yaml.YAMLError) as error:
            note(f"Error: {' '.join(str(error).split())}")
    return {"answers": chat.answers}


def read_lines() -> Iterator[str]:
    """Yields the lines of stdin that are not empty; at a terminal, with a prompt and a history."""
    if not sys.stdin.isatty():
        yield from filter(None, map(str.strip, sys.stdin))
        return
    with contextlib.suppress(ImportError):  # not on every platform
        import readline  # gives `input` a history

        # Lines that are pasted together are one message; Python turns this off.
        readline.parse_and_bind("set enable-bracketed-paste on")
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            say("")
            return
        except KeyboardInterrupt:
            note("\n/quit or Ctrl-D ends the program.")
            continue
        if line:
            yield line


class Chat:
    """A conversation with a model, whose tokenizer has a chat template. `config` takes precedence over its recipe."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        config: DiffusionGenerationConfig,
        seed: int,
        system_prompt: str | None,
    ):
        if tokenizer.chat_template is None:
            raise ValueError(
                "The model has no chat template: it continues text and cannot chat. Use `hf-dparallel generate`."
            )
        self.model, self.tokenizer, self.config = model, tokenizer, config
        self.answers: list[dict[str, Any]] = []
        self._start = [{"role": "system", "content": system_prompt}] if system_prompt else []
        self._history: list[dict[str, str]] = list(self._start)
        self._generator = torch.Generator(model.device).manual_seed(seed)
        self._resolved(config)

    def take(self, line: str) -> bool:
        """Answers a message or obeys a command; `False` after `/quit`, even without its slash."""
        if line.removeprefix("/") in ("exit", "quit"):
            return False
        if not line.startswith("/"):
            self._answer(line)
            return True
        command, *values = line.split(maxsplit=2)
        if command == "/set" and len(values) == 2:
            self._set(*values)
        elif command == "/set":
            note("/set needs a name and a value, for instance /set entropy_threshold 0.5")
        elif command == "/settings":
            for name, value in self._resolved(self.config).non_defaults().items():
                say(f"{name} {value}")
        elif command in ("/reset", "/clear"):
            self._history = list(self._start)
            note("The conversation is forgotten.")
        elif command == "/help":
            say(HELP)
        else:
            meant = suggest(command, _COMMANDS)
            note(" ".join(filter(None, [f"Unknown command {command}.", meant, "/help shows the commands."])))
        return True

    def _answer(self, text: str) -> None:
        messages = [*self._history, {"role": "user", "content": text}]
        prompt = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
        recipe, streamer = self._resolved(self.config), AnswerStreamer(self.tokenizer)
        self._check_length(len(prompt["input_ids"]), recipe.max_new_tokens)
        try:
            figures = answer(self.model, self.tokenizer, prompt["input_ids"], recipe, self._generator, streamer)
        except KeyboardInterrupt:
            note("(stopped)")
            if not streamer.text:
                return
        else:
            note(f"({cost_of(figures)}, {figures['latency_s']:.1f} s)")
            self.answers.append(figures)
        # A stopped answer stays in the conversation.
        self._history = [*messages, {"role": "assistant", "content": streamer.text}]

    def _check_length(self, prompt_length: int, new: int) -> None:
        longest = longest_sequence(self.model)
        if longest is not None and prompt_length + new > longest:
            remedy = "/reset forgets the conversation" if self._history != self._start else "Shorten the message"
            raise ValueError(
                f"The conversation has {prompt_length} tokens and the answer may have {new}, together more than the "
                f"{longest} that the model was trained for. {remedy}; /set max_new_tokens makes the answer shorter."
            )

    def _set(self, name: str, text: str) -> None:
        value = yaml.safe_load(text)
        if name not in SETTINGS:
            raise ValueError(f"Unknown setting {name}. {suggest(name)}".rstrip())
        if not SETTINGS[name].changes_answer:
            raise ValueError(f"`{name}` cannot be changed here.")
        config = self.config.updated(**{name: None if value in ("none", "None") else value})
        self._resolved(config)
        self.config = config
        note(f"{name} {value}")

    def _resolved(self, config: DiffusionGenerationConfig) -> DiffusionGenerationConfig:
        """Returns all settings, the model's included."""
        resolved = resolve_settings(self.model, config, self.tokenizer)
        if resolved.is_infilling:
            raise click.UsageError("`max_new_tokens` must be a positive integer, got 0.")
        return resolved
