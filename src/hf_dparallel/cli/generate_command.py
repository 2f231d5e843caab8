# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel generate`: answer one prompt."""

import time

import torch

from hf_dparallel_cli.flags import GenerateFlags

from ..generation.answerer import row_generator
from .answer_streamer import AnswerStreamer
from .console import count, note, say, write_json
from .loading import encode_prompt, load_model, read_prompt, read_settings, resolve_settings


def run(flags: GenerateFlags) -> None:
    """Prints the answer, and what it cost on stderr."""
    given, text = read_settings(flags), read_prompt(flags)
    model, tokenizer = load_model(flags)
    prompt_ids = encode_prompt(tokenizer, text, flags.raw)
    start = time.perf_counter()
    out = model.generate(
        input_ids=torch.tensor([prompt_ids], device=model.device),
        generation_config=resolve_settings(model, given, tokenizer),
        streamer=AnswerStreamer(tokenizer) if flags.stream else None,
        tokenizer=tokenizer,
        # As for the first row in `inspect`, which so shows this decode.
        generator=row_generator(model.device, flags.seed, row=0),
        return_dict_in_generate=True,
    )
    figures = {
        "prompt": text,
        "text": tokenizer.decode(out.sequences[0, len(prompt_ids) :], skip_special_tokens=True),
        "nfe": out.nfe.item(),
        "tokens_per_forward": out.tokens_per_forward.item(),
        "num_revisions": out.num_revisions.item(),
        "latency_s": time.perf_counter() - start,
    }
    if not flags.stream:
        say(figures["text"])
    empty = "" if figures["text"] else "Empty answer: "
    passes = count(figures["nfe"], "forward pass")
    note(f"{empty}{passes}, {figures['tokens_per_forward']:.2f} tokens per forward pass")
    write_json(figures, flags.json)
