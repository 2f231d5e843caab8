# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Decodes one answer, and shows it on the terminal while it is decoded."""

import sys
import time
from shutil import get_terminal_size
from typing import Any

import click
import torch
from rich.cells import cell_len, set_cell_size
from transformers import TextStreamer

from hf_dparallel.data.thoughts import ThoughtMarkers, split_thought
from hf_dparallel.generation.answerer import Answerer
from hf_dparallel.inspection.text import printable


class AnswerStreamer(TextStreamer):
    """Prints decided text, and thoughts dimmed, on a terminal with a draft of the rest of the line in yellow.

    Attributes:
        text (`str`): the decided text.
        shown (`tuple[str, str]`): the thought and the answer in it, as far as they are printed.
    """

    def __init__(self, answerer: Answerer):
        super().__init__(answerer.tokenizer, skip_prompt=True, skip_special_tokens=True)
        config = answerer.config
        self.markers = ThoughtMarkers.of(self.tokenizer, config.thought_markers, config.chat_template_kwargs)
        self.text, self.shown = "", ("", "")

    def put_draft(self, value: torch.Tensor, **kwargs: Any) -> None:
        """Shows the guess of what follows. A guess of several lines could scroll, and would then stay there."""
        if sys.stdout.isatty():
            tokens = self.token_cache + value.flatten().tolist()
            draft = printable(self.tokenizer.decode(tokens, **self.decode_kwargs)[self.print_len :]).partition("\n")[0]
            columns = get_terminal_size().columns
            # The line may have begun with the "> " of a message that was typed ahead.
            room = columns - 4 - cell_len(self.text.rpartition("\n")[2]) % columns
            click.echo(f"\0337\033[33m{set_cell_size(draft, max(room, 0))}\033[0m\0338", nl=False)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Prints decided text in the place of the draft."""
        self.text += text
        before, self.shown = self.shown, split_thought(self.markers, self.text, stream_end)
        thought, new = (now[len(then) :] for then, now in zip(before, self.shown, strict=True))
        if thought:
            click.secho(printable(thought), dim=True, nl=False)
        is_first = bool(new and self.shown[0] and not before[1])
        new = "\n\n" * is_first + printable(new)
        super().on_finalized_text(("\033[K" if sys.stdout.isatty() else "") + new, stream_end)


def answer(
    answerer: Answerer, prompt_ids: list[int], generator: torch.Generator, streamer: AnswerStreamer | None
) -> dict[str, Any]:
    """Decodes an answer to one prompt, and returns its text and what it cost."""
    start = time.perf_counter()
    out = answerer.model.generate(
        input_ids=torch.tensor([prompt_ids], device=answerer.model.device),
        generation_config=answerer.config,
        streamer=streamer,
        tokenizer=answerer.tokenizer,
        generator=generator,
        return_dict_in_generate=True,
    )
    # An infilled prompt is its own answer.
    begin = 0 if answerer.config.is_infilling else len(prompt_ids)
    return {
        "text": answerer.tokenizer.decode(out.sequences[0, begin:], skip_special_tokens=True),
        **{name: getattr(out, name).item() for name in ("nfe", "tokens_per_forward", "num_revisions")},
        "latency_s": time.perf_counter() - start,
    }


def describe_cost(figures: dict[str, Any]) -> str:
    """Describes the cost of an answer."""
    empty = "" if figures["text"] else "Empty answer: "
    passes = "1 forward pass" if figures["nfe"] == 1 else f"{figures['nfe']} forward passes"
    return f"{empty}{passes}, {figures['tokens_per_forward']:.2f} tokens per forward pass"
