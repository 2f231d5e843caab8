# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The answers of a base model and of its student, and their partial answers after each pass."""

import html
import os
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
        confidences (`list[list[float]]`): of each pass, how confident it was of each token that it had to decide.
    """

    tokens: list[str]
    commit_step: list[int]
    confidences: list[list[float]]

    @property
    def nfe(self) -> int:
        """Counts forward passes."""
        return len(self.confidences)

    def to_html(self, num_passes: int) -> str:
        """Shows the partial answer after `num_passes`, each token in its pass's colour, and their number."""
        num_passes = min(num_passes, self.nfe)
        spans = [self._span(place, num_passes) for place in range(len(self.tokens))]
        passes = "pass" if num_passes == 1 else "passes"
        return f'<div class="answer">{"".join(spans)}</div><p class="cost">{num_passes} {passes}</p>'

    def _span(self, place: int, num_passes: int) -> str:
        step, token = self.commit_step[place], self.tokens[place]
        if 0 <= step < num_passes:
            word, when = token.lstrip(), step / max(self.nfe - 1, 1)
            new = " new" if step == num_passes - 1 < self.nfe - 1 else ""
            # A space has no colour, which would stand out at the end of a line.
            space = token[: len(token) - len(word)]
            return f'{space}<span class="by-pass{new}" style="--when:{when:.3f}">{html.escape(word)}</span>'
        if step < 0:
            return ""
        confidence = self.confidences[num_passes - 1][place] if num_passes else 0.0
        # It is nan in blocks that no pass has come to.
        return f'<span class="mask" style="--confidence:{confidence if confidence > 0 else 0:.3f}"></span>'


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

    def answers(self, question: str, threshold: float, base_too: bool = False) -> tuple[Answer, Answer]:
        """Answers a question without and with the adapter.

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
        return base, student

    def answer(self, question: str, recipe: DiffusionGenerationConfig) -> Answer:
        """Answers a question with the adapter, if it is enabled."""
        messages = [{"role": "user", "content": question}]
        inputs = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        ).to(self.model.device)
        shown = {"return_dict_in_generate": True, "output_certainty": True}
        out = self.model.generate(**inputs, generation_config=recipe, **shown)
        tokens = out.sequences[0, inputs["input_ids"].shape[1] :].tolist()
        commit_step = out.commit_step[0].tolist()
        texts = [token["text"] or "" for token in say_draft(self.tokenizer, Draft(0, tokens, commit_step))]
        return Answer(texts, commit_step, out.confidences[0, : out.nfe.item()].tolist())
