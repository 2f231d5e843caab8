# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Decodes one answer, and shows it on the terminal while it is decoded."""

import sys
import time
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TextDiffusionStreamer

from hf_dparallel.generation.configuration import DiffusionGenerationConfig


class AnswerStreamer(TextDiffusionStreamer):
    """Prints an answer as it is decided, on a terminal with drafts of what follows, and keeps the decided `text`."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.text = ""

    def put_draft(self, value: torch.Tensor, **kwargs: Any) -> None:
        """Prints a draft, on a terminal."""
        if sys.stdout.isatty():
            super().put_draft(value)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Prints decided text."""
        self.text += text
        super().on_finalized_text(text, stream_end)


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
    # An infilled prompt is its own answer.
    begin = 0 if recipe.is_infilling else len(prompt_ids)
    return {
        "text": tokenizer.decode(out.sequences[0, begin:], skip_special_tokens=True),
        **{name: getattr(out, name).item() for name in ("nfe", "tokens_per_forward", "num_revisions")},
        "latency_s": time.perf_counter() - start,
    }


def describe_cost(figures: dict[str, Any]) -> str:
    """Describes the cost of an answer."""
    empty = "" if figures["text"] else "Empty answer: "
    passes = "1 forward pass" if figures["nfe"] == 1 else f"{figures['nfe']} forward passes"
    return f"{empty}{passes}, {figures['tokens_per_forward']:.2f} tokens per forward pass"
