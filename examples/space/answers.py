# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The answers of a base model and of its student, and what stands of them after each pass."""

import html
import os
from collections.abc import Iterator
from dataclasses import dataclass

from transformers import AutoModelForMaskedLM, AutoTokenizer

from hf_dparallel import DiffusionGenerationConfig, demo
from hf_dparallel.generation.configuration import recipe_of
from hf_dparallel.serving.followers import Draft
from hf_dparallel.serving.incremental_text import say_draft


STUDENT = os.environ.get("STUDENT", demo.STUDENT)


@dataclass
class Answer:
    """An answer and how it came about.

    Args:
        tokens (`list[str]`): the text of each token.
        commit_step (`list[int]`): the pass that decided it, counted from 0; -1 after the end of the answer.
        nfe (`int`): forward passes.
        tokens_per_forward (`float`): tokens of the answer over passes.
    """

    tokens: list[str]
    commit_step: list[int]
    nfe: int
    tokens_per_forward: float

    def to_html(self, num_passes: int) -> str:
        """What stands after so many passes, each token in the colour of its pass, and the cost."""
        spans = [
            self._span(token, step, num_passes) for token, step in zip(self.tokens, self.commit_step, strict=True)
        ]
        cost = f"{min(num_passes, self.nfe)} passes"
        if num_passes >= self.nfe:
            cost += f", {self.tokens_per_forward:.1f} tokens per pass"
        return f'<div class="answer">{"".join(spans)}</div><p class="cost">{cost}</p>'

    def _span(self, token: str, step: int, num_passes: int) -> str:
        if 0 <= step < num_passes:
            new = " new" if step == num_passes - 1 < self.nfe - 1 else ""
            # Neighbouring passes have colours that are told apart.
            return f'<span class="token{new}" style="--hue:{(260 + 47 * step) % 360}">{html.escape(token)}</span>'
        return '<span class="token mask"></span>' if num_passes < self.nfe else ""


class Pair:
    """A base model and its student, which are one model without and with an adapter.

    Args:
        student (`str`): the adapter, which says itself what its base is.
    """

    def __init__(self, student: str = STUDENT):
        self.model = AutoModelForMaskedLM.from_pretrained(student, dtype="auto", device_map="auto").eval()
        self.base = self.model.config._name_or_path
        self.tokenizer = AutoTokenizer.from_pretrained(self.base, padding_side="left")
        self.recipe = recipe_of(self.model)

    def play(self, question: str, threshold: float, base_too: bool = False) -> Iterator[tuple[str, str]]:
        """Answers a question without and with the adapter, then yields what stands of both after each pass, as HTML.

        Args:
            question (`str`): what is asked.
            threshold (`float`): entropy threshold of the student, in nats.
            base_too (`bool`): whether the base model uses it, instead of deciding one token in each pass.
        """
        fast = self.recipe.updated(entropy_threshold=threshold)
        student = self.answer(question, fast)
        self.model.disable_adapters()
        try:
            base = self.answer(question, fast if base_too else self.recipe.one_token_per_pass())
        finally:
            self.model.enable_adapters()
        for num_passes in range(max(base.nfe, student.nfe) + 1):
            yield base.to_html(num_passes), student.to_html(num_passes)

    def answer(self, question: str, recipe: DiffusionGenerationConfig) -> Answer:
        """Answers a question with the adapter, if it is enabled."""
        messages = [{"role": "user", "content": question}]
        inputs = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        ).to(self.model.device)
        out = self.model.generate(**inputs, generation_config=recipe, return_dict_in_generate=True)
        tokens = out.sequences[0, inputs["input_ids"].shape[1] :].tolist()
        commit_step = out.commit_step[0].tolist()
        texts = [token["text"] or "" for token in say_draft(self.tokenizer, Draft(0, tokens, commit_step))]
        return Answer(texts, commit_step, out.nfe.item(), out.tokens_per_forward.item())
