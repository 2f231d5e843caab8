# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel generate`: answer one prompt."""

import time
from contextlib import nullcontext
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_dparallel_cli.command import Flags

from ..generation.answerer import row_generator
from ..generation.configuration import DiffusionGenerationConfig
from .answer_streamer import AnswerStreamer
from .console import note, say
from .loading import encode_prompt, load_model, read_prompt, read_settings, resolve_settings


def run(flags: Flags) -> dict[str, Any]:
    """Prints the answer, and what it cost on stderr."""
    given, text = read_settings(flags), read_prompt(flags)
    model, tokenizer = load_model(flags)
    prompt_ids = encode_prompt(tokenizer, text, flags.raw)
    recipe = resolve_settings(model, given, tokenizer)
    # As for the first row in `inspect`, which so shows this decode.
    generator = row_generator(model.device, flags.seed, row=0)
    figures = answer(
        model, tokenizer, prompt_ids, recipe, generator, AnswerStreamer(tokenizer) if flags.stream else None
    )
    if not flags.stream:
        say(figures["text"])
    note(cost_of(figures))
    return {"prompt": text} | figures


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
    with streamer or nullcontext():
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


def cost_of(figures: dict[str, Any]) -> str:
    """Describes the cost of an answer."""
    empty = "" if figures["text"] else "Empty answer: "
    passes = "1 forward pass" if figures["nfe"] == 1 else f"{figures['nfe']} forward passes"
    return f"{empty}{passes}, {figures['tokens_per_forward']:.2f} tokens per forward pass"
