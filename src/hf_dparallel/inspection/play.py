# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The page of `hf-dparallel play` and of the Space: a base model and its student answer a question. Needs gradio."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoModelForMaskedLM, AutoTokenizer

from ..data.prompts import encode_chat
from ..generation.compatibility import active_adapter, set_adapter
from ..generation.configuration import recipe_of
from .trace import DecodeTrace, trace_decode


if TYPE_CHECKING:
    import gradio as gr

# Questions to the bundled models.
QUESTIONS = (
    "Mia has 14 pens. She finds 6 more and then sells 5. How many pens are left?",
    "Tom has 20 coins. He finds 8 more and loses 5. Then he buys 9 more and loses 7. How many are left?",
    "Emma has twenty-three books and buys eight more. How many books does she have?",
    "What is the capital of France?",
)
_INTRODUCTION = (
    "# A diffusion model and its student\nThe model answers a question alone and as {student}, which was distilled "
    "with [dParallel](https://huggingface.co/papers/2509.26488) to be certain of many tokens at once. The "
    "later a token was committed, the stronger is its colour."
)
_MASK = "░"
# A text, and how late it was committed.
Frame = list[tuple[str, str | float | None]]


class Pair:
    """A base model and its student: one model, without and with its adapter. Both use the student's recipe.

    Args:
        student (`str`): the adapter, which says itself what its base is; or a model without any.
    """

    def __init__(self, student: str):
        self.model = AutoModelForMaskedLM.from_pretrained(student, dtype="auto", device_map="auto").eval()
        self.adapter = active_adapter(self.model)
        self.tokenizer = AutoTokenizer.from_pretrained(self.model.config.name_or_path)
        self.recipe = recipe_of(self.model)

    def answer(self, question: str, **settings: Any) -> tuple[DecodeTrace, DecodeTrace]:
        """Decodes the answers of both, that of the base model with one token per pass."""
        messages = [{"role": "user", "content": question}]
        prompt_ids = encode_chat(self.tokenizer, messages, **self.recipe.chat_template_kwargs or {})
        fast = self.recipe.updated(**settings)
        try:
            set_adapter(self.model, None)
            base = trace_decode(self.model, self.tokenizer, prompt_ids, fast.one_token_per_pass(), "Base model")
        finally:
            set_adapter(self.model, self.adapter)
        return base, trace_decode(self.model, self.tokenizer, prompt_ids, fast, "Student")

    def frame(self, trace: DecodeTrace, num_passes: int) -> Frame:
        """Returns an answer after `num_passes`, each token with its pass as a fraction of all."""
        spans: Frame = []
        for position in range(len(trace.changes)):
            step, text = trace.standing(position, num_passes)
            if text is None and num_passes < trace.nfe:
                spans.append((_MASK, None))
            elif text is not None and text.strip() not in self.tokenizer.all_special_tokens:
                spans.append((text if spans else text.lstrip(" "), (step + 1) / trace.nfe))
        return spans


def make_page(student: str) -> "gr.Blocks":
    """Loads a student and its base model, and returns the page that plays their answers.

    Args:
        student (`str`): the adapter, which says itself what its base is; or a model without any.
    """
    import gradio as gr

    pair = Pair(student)
    with gr.Blocks(title="hf-dparallel") as page:
        gr.Markdown(_INTRODUCTION.format(student=Path(student).name))
        question = gr.Textbox(QUESTIONS[0], label="Question")
        gr.Examples(list(QUESTIONS), question)
        with gr.Row():
            settings = [
                gr.Slider(0, 3, pair.recipe.entropy_threshold or 0.5, step=0.05, label="Entropy threshold (nats)"),
                gr.Slider(32, 512, pair.recipe.max_new_tokens or 128, step=32, label="Tokens of the canvas"),
            ]
        # Until the browser has all of the page, a click would do nothing.
        button = gr.Button("Answer", variant="primary", interactive=False)
        page.load(lambda: gr.Button(interactive=True), None, button, api_visibility="private", show_progress="hidden")
        with gr.Row():
            panels = [
                gr.HighlightedText(elem_id=name.split()[0].lower(), label=name) for name in ("Base model", "Student")
            ]

        def answer(question: str, threshold: float, length: int) -> Iterator[dict[Any, Any]]:
            if not question.strip():
                raise gr.Error("Ask a question first.")
            try:
                both = pair.answer(question, entropy_threshold=threshold, max_new_tokens=length)
            except ValueError as error:
                raise gr.Error(str(error)) from error
            longest = max(trace.nfe for trace in both)
            for number in range(longest + 1):
                yield {
                    panel: gr.HighlightedText(pair.frame(trace, number), label=cost_of(trace, number))
                    for panel, trace in zip(panels, both, strict=True)
                }
                # At most six seconds in all.
                time.sleep(min(6 / longest, 0.3))

        # One at a time: both answers come from one model, whose adapter is switched.
        gr.on(
            [button.click, question.submit],
            answer,
            [question, *settings],
            panels,
            api_name="answer",
            show_progress="hidden",
            concurrency_limit=1,
        )
    return page


def cost_of(trace: DecodeTrace, num_passes: int) -> str:
    """Describes what an answer has cost after `num_passes`."""
    num_passes = min(num_passes, trace.nfe)
    whole = f", {trace.tokens_per_forward:.1f} tokens per pass" if num_passes == trace.nfe else ""
    return f"{trace.name}: {num_passes} pass{'es' * (num_passes != 1)}{whole}"
