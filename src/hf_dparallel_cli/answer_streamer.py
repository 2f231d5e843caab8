# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Decodes one answer, and shows it on the terminal while it is decoded: drafts in place, elsewhere plain text."""

import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any, TextIO

import torch
from rich.console import Console
from rich.live import Live
from rich.text import Text
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.streamers import BaseStreamer

from hf_dparallel.generation.configuration import DiffusionGenerationConfig
from hf_dparallel.inspection.text import pass_style, printable


class AnswerStreamer(BaseStreamer, AbstractContextManager):
    """Writes decided text as it comes and, on a terminal, the draft of what follows in yellow after it.

    On a terminal the last rows are drawn anew in each pass, and the whole answer when the context is left. `text` is
    the decided text so far.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, out: TextIO | None = None):
        self.text = ""
        self._tokenizer = tokenizer
        self._out = sys.stdout if out is None else out
        self._console = Console(file=self._out)
        shows_drafts = self._out.isatty() and not self._console.is_dumb_terminal
        self._live = Live(console=self._console, auto_refresh=False) if shows_drafts else None
        self._tokens: list[int] = []
        self._has_prompt = False

    def put(self, value: torch.Tensor) -> None:
        """Writes decided tokens, after the prompt, which comes first."""
        if not self._has_prompt:
            self._has_prompt = True
            return
        self._tokens += value.flatten().tolist()
        # The rest of a character may follow.
        self._write_decided(self._decode(self._tokens).rstrip("\ufffd"))

    def put_draft(self, value: torch.Tensor, **kwargs) -> None:
        """Shows the current guess of what follows."""
        draft = self._decode(self._tokens + value.flatten().tolist())[len(self.text) :]
        self._draw(Text.assemble(printable(self.text), (printable(draft), "yellow")))

    def end(self) -> None:
        """Takes the draft back."""
        self._write_decided(self._decode(self._tokens))

    def show_passes(self, commit_step: Sequence[int], num_passes: int) -> None:
        """Colours a finished answer by pass."""
        texts = [self._decode(self._tokens[:end]).rstrip("\ufffd") for end in range(len(self._tokens) + 1)]
        pieces = [printable(after[len(before) :]) for before, after in pairwise(texts)]
        if self._live is not None and "".join(pieces) == printable(self.text):
            styles = (pass_style(step, num_passes) for step in commit_step)
            self._live.update(Text.assemble(*zip(pieces, styles, strict=False)))

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            self.end()
        if self._live is not None:
            self._live.stop()
        else:
            self._write("\n")

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _write_decided(self, text: str) -> None:
        new, self.text = text[len(self.text) :], max(text, self.text, key=len)
        if self._live is not None:
            self._draw(Text(printable(self.text)))
        else:
            self._write(printable(new))

    def _draw(self, text: Text) -> None:
        if self._live is not None:
            self._live.start()
            # Text that has left the screen cannot be redrawn. The finished answer is drawn whole.
            rows = text.wrap(self._console, self._console.width)[-self._console.height :]
            self._live.update(Text("\n").join(rows), refresh=True)
            self._live.update(text)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def answer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt_ids: list[int],
    recipe: DiffusionGenerationConfig,
    generator: torch.Generator,
    streamer: AnswerStreamer | None,
) -> dict[str, Any]:
    """Decodes an answer to one prompt, and returns its text and what it cost."""
    start = time.perf_counter()
    out = model.generate(
        input_ids=torch.tensor([prompt_ids], device=model.device),
        generation_config=recipe,
        streamer=streamer,
        tokenizer=tokenizer,
        generator=generator,
        return_dict_in_generate=True,
    )
    seconds = time.perf_counter() - start
    if streamer is not None and not recipe.is_infilling:
        streamer.show_passes(out.commit_step[0].tolist(), out.nfe.item())
    # An infilled prompt is its own answer.
    begin = 0 if recipe.is_infilling else len(prompt_ids)
    return {
        "text": tokenizer.decode(out.sequences[0, begin:], skip_special_tokens=True),
        **{name: getattr(out, name).item() for name in ("nfe", "tokens_per_forward", "num_revisions")},
        "latency_s": seconds,
    }


def describe_cost(figures: dict[str, Any]) -> str:
    """Describes the cost of an answer."""
    empty = "" if figures["text"] else "Empty answer: "
    passes = "1 forward pass" if figures["nfe"] == 1 else f"{figures['nfe']} forward passes"
    return f"{empty}{passes}, {figures['tokens_per_forward']:.2f} tokens per forward pass"
