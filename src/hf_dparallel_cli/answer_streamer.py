# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Decodes one answer, and shows it on the terminal while it is decoded."""

import time
from typing import Any

import click
import torch
from transformers import TextStreamer

from hf_dparallel.data.texts import decode_without
from hf_dparallel.data.thoughts import hidden_tokens, markers_of, split_thought
from hf_dparallel.generation.answerer import Answerer


class AnswerStreamer(TextStreamer):
    """Prints decided text, and thoughts dimmed.

    Attributes:
        text (`str`): the decided text.
        shown (`tuple[str, str]`): the thought and the answer in it, as far as they are printed.
    """

    def __init__(self, answerer: Answerer):
        super().__init__(answerer.tokenizer, skip_prompt=True, skip_special_tokens=False)
        self.markers = markers_of(answerer)
        self.hidden = torch.tensor(sorted(hidden_tokens(answerer.tokenizer, self.markers)), dtype=torch.long)
        self.text = ""
        self.shown = ("", "")

    def put(self, value: torch.Tensor) -> None:
        """Takes the prompt, then tokens that are decided. Special ones are no text, but for markers of thoughts."""
        is_hidden = torch.isin(value.cpu(), self.hidden)
        if not self.next_tokens_are_prompt:
            value = value.cpu()[~is_hidden]
        super().put(value)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Prints decided text."""
        self.text += text
        before = self.shown
        self.shown = split_thought(self.markers, self.text, stream_end)
        thought = self.shown[0][len(before[0]) :]
        new = self.shown[1][len(before[1]) :]

        if thought:
            click.secho(thought, dim=True, nl=False)
        if new and self.shown[0] and not before[1]:
            # The answer begins after its thought.
            new = f"\n\n{new}"
        super().on_finalized_text(new, stream_end)


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
    hidden = hidden_tokens(answerer.tokenizer, markers_of(answerer))
    return {
        "text": decode_without(answerer.tokenizer, out.sequences[0, begin:].tolist(), hidden),
        **{name: getattr(out, name).item() for name in ("nfe", "tokens_per_forward", "num_revisions")},
        "latency_s": time.perf_counter() - start,
    }


def describe_cost(figures: dict[str, Any]) -> str:
    """Describes the cost of an answer."""
    passes = f"{figures['nfe']} forward passes"
    if figures["nfe"] == 1:
        passes = "1 forward pass"
    cost = f"{passes}, {figures['tokens_per_forward']:.2f} tokens per forward pass"
    return cost if figures["text"] else f"Empty answer: {cost}"
