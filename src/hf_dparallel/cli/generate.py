# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel generate`: answer one prompt."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..generation.answerer import row_generator
from .answer_streamer import AnswerStreamer
from .arguments import CommandParser, DecodingArguments, LoadingArguments, OutputArguments, PromptArguments
from .console import count, note, say, write_json
from .loading import encode_prompt, load_model, resolve_settings


@dataclass
class StreamArguments:
    stream: bool = field(default=False, metadata={"help": "Show the text while it is decoded."})


def make_parser() -> CommandParser:
    """The arguments of the command."""
    return CommandParser(
        "generate",
        [LoadingArguments, PromptArguments, StreamArguments, DecodingArguments, OutputArguments],
        positionals=["model"],
    )


def run(argv: Sequence[str]) -> None:
    """Prints the answer, and what it cost on stderr."""
    loading, prompt, stream, decoding, output = make_parser().parse(argv)
    text = prompt.read()
    model, tokenizer = load_model(loading)
    prompt_ids = encode_prompt(tokenizer, text, prompt.raw)
    figures = {"prompt": text, **answer(model, tokenizer, prompt_ids, decoding, stream.stream)}
    if not stream.stream:
        say(figures["text"])
    empty = "" if figures["text"] else "Empty answer: "
    passes = count(figures["nfe"], "forward pass")
    note(f"{empty}{passes}, {figures['tokens_per_forward']:.2f} tokens per forward pass")
    write_json(figures, output.json)


def answer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt_ids: list[int],
    decoding: DecodingArguments,
    stream: bool,
) -> dict[str, Any]:
    """Decodes an answer and returns it with its cost."""
    streamer = AnswerStreamer(tokenizer) if stream else None
    start = time.perf_counter()
    out = model.generate(
        input_ids=torch.tensor([prompt_ids], device=model.device),
        generation_config=resolve_settings(model, decoding.to_generation_config(), tokenizer),
        streamer=streamer,
        tokenizer=tokenizer,
        # That of the first row in `inspect`, which so shows this decode.
        generator=row_generator(model.device, decoding.seed, row=0),
        return_dict_in_generate=True,
    )
    new_ids = out.sequences[0, len(prompt_ids) :]
    return {
        "text": tokenizer.decode(new_ids, skip_special_tokens=True),
        "nfe": out.nfe.item(),
        "tokens_per_forward": out.tokens_per_forward.item(),
        "num_revisions": out.num_revisions.item(),
        "latency_s": time.perf_counter() - start,
    }
