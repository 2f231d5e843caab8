# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Shows on the terminal how the bundled teacher and the bundled student decode one problem, pass by pass."""

import sys

import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.generation.streamers import BaseStreamer

from ..data.prompts import encode_chat
from ..generation.adapters import active_adapter, set_adapter
from ..generation.configuration import recipe_of
from . import STUDENT


QUESTION = "Mia has 14 pens. She finds 6 more and then sells 5. How many pens are left?"


class DraftPrinter(BaseStreamer):
    """Prints the draft of each pass: over the one before on a terminal, and else every eighth on a line of its own."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, name: str):
        self.tokenizer = tokenizer
        self.name = name
        self.num_passes = 0
        self.decided: list[int] = []
        self.is_prompt = True

    def put(self, value: torch.Tensor) -> None:
        """Takes the prompt first, and then decided tokens."""
        if not self.is_prompt:
            self.decided += value.tolist()
        self.is_prompt = False

    def put_draft(self, value: torch.Tensor) -> None:
        """Prints the answer as it is after a pass, with the draft of what is undecided."""
        self.num_passes += 1
        if sys.stdout.isatty():
            print(f"\r\033[K{self.line(value.tolist())[:110]}", end="", flush=True)
        elif self.num_passes % 8 == 1:
            print(self.line(value.tolist()), flush=True)

    def line(self, draft: list[int]) -> str:
        """Returns the passes and the text of the decided tokens and a draft."""
        text = self.tokenizer.decode([*self.decided, *draft], skip_special_tokens=True)
        return f"{self.name}, pass {self.num_passes:2}: {' '.join(text.split())}"

    def end(self) -> None:
        """Leaves the last line to what `show_duel` prints."""
        if sys.stdout.isatty():
            print("\r\033[K", end="")


def show_duel(question: str = QUESTION) -> dict[str, int]:
    """Decodes a question with the bundled teacher, one token per pass, and with its student; returns their passes."""
    model = AutoModelForMaskedLM.from_pretrained(STUDENT).eval()
    tokenizer = AutoTokenizer.from_pretrained(STUDENT)
    student = active_adapter(model)
    fast = recipe_of(model)
    inputs = torch.tensor([encode_chat(tokenizer, [{"role": "user", "content": question}])])
    print(f"\n{question}", flush=True)

    passes = {}
    for name, adapter, recipe in (("Teacher", None, fast.one_token_per_pass()), ("Student", student, fast)):
        set_adapter(model, adapter)
        out = model.generate(
            input_ids=inputs,
            generation_config=recipe,
            tokenizer=tokenizer,
            streamer=DraftPrinter(tokenizer, name),
            return_dict_in_generate=True,
        )
        answer = tokenizer.decode(out.sequences[0, inputs.shape[1] :], skip_special_tokens=True)
        passes[name] = out.nfe.item()
        print(f"{name}, {passes[name]} passes: {answer}", flush=True)
    return passes
