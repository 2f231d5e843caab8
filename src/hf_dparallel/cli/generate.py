# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel generate`: answer one prompt."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase, TextDiffusionStreamer, set_seed

from . import COMMANDS
from .arguments import CommandParser, DecodingArguments, LoadingArguments, OutputArguments
from .console import note, say, write_json
from .loading import load_model


@dataclass
class PromptArguments:
    prompt: str | None = field(default=None, metadata={"help": "The prompt. By default it is read from stdin."})
    prompt_file: str | None = field(default=None, metadata={"help": "File with the prompt.", "metavar": "FILE"})
    raw: bool = field(
        default=False, metadata={"help": "Continue the prompt as it is, without the chat template of the tokenizer."}
    )
    stream: bool = field(default=False, metadata={"help": "Show the text while it is decoded."})

    def __post_init__(self):
        if self.prompt is not None and self.prompt_file is not None:
            raise ValueError("`prompt` and `prompt_file` are both given. Remove one.")

    def read(self) -> str:
        """Returns the prompt.

        Raises:
            ValueError: if it is empty.
        """
        if self.prompt is not None:
            text, source = self.prompt, "`prompt`"
        elif self.prompt_file is not None:
            text, source = Path(self.prompt_file).read_text(encoding="utf-8"), f"`prompt_file={self.prompt_file}`"
        else:
            text, source = sys.stdin.read(), "stdin"
        if not text.strip():
            raise ValueError(f"The prompt from {source} is empty. Give one with --prompt TEXT.")
        return text.rstrip("\n")


def run(argv: Sequence[str]) -> None:
    """Prints the answer, and what it cost on stderr."""
    parser = CommandParser(
        "generate", COMMANDS["generate"], [LoadingArguments, PromptArguments, DecodingArguments, OutputArguments]
    )
    loading, prompt, decoding, output = parser.parse(argv)
    text = prompt.read()
    model, tokenizer = load_model(loading)
    figures = answer(model, tokenizer, text, prompt, decoding)
    if not prompt.stream:
        say(figures["text"])
    note(f"{figures['nfe']} forward passes, {figures['tokens_per_forward']:.2f} tokens per forward pass")
    write_json(figures, output.json)


def answer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    prompt: PromptArguments,
    decoding: DecodingArguments,
) -> dict[str, Any]:
    """Decodes an answer and returns it with its cost."""
    if tokenizer.chat_template is None or prompt.raw:
        inputs = tokenizer(text, return_tensors="pt")
    else:
        inputs = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
    streamer = TextDiffusionStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True) if prompt.stream else None
    set_seed(decoding.seed)
    start = time.perf_counter()
    out = model.generate(
        input_ids=inputs["input_ids"].to(model.device),
        generation_config=decoding.to_generation_config(),
        streamer=streamer,
        tokenizer=tokenizer,
        return_dict_in_generate=True,
    )
    new_ids = out.sequences[0, inputs["input_ids"].shape[1] :]
    return {
        "text": tokenizer.decode(new_ids, skip_special_tokens=True),
        "nfe": out.nfe.item(),
        "tokens_per_forward": out.tokens_per_forward.item(),
        "latency_s": time.perf_counter() - start,
    }
