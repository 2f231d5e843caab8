# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The page of `hf-dparallel play` and of the Space: a base model and its student answer a question. Needs gradio."""

import html
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoModelForMaskedLM, AutoTokenizer

from ..data.chats import encode_chat
from ..generation.adapters import active_adapter, set_adapter
from ..generation.configuration import recipe_of
from .page import make_html
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
    "with [dParallel](https://huggingface.co/papers/2509.26488) to be certain of many tokens at once."
)


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


def make_page(student: str) -> "gr.Blocks":
    """Loads a student and its base model, and returns the page that plays their answers.

    Args:
        student (`str`): the adapter, which says itself what its base is; or a model without any.
    """
    import gradio as gr

    pair = Pair(student)
    with gr.Blocks(title="hf-dparallel", fill_width=True) as page:
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
        decodes = gr.HTML()

        def answer(question: str, threshold: float, length: int) -> str:
            if not question.strip():
                raise gr.Error("Ask a question first.")
            try:
                both = pair.answer(question, entropy_threshold=threshold, max_new_tokens=length)
            except ValueError as error:
                raise gr.Error(str(error)) from error
            document = html.escape(make_html(both, question, plays=True))
            style = "width: 100%; height: 42rem; border: 0"
            return (
                f'<iframe title="Both answers" sandbox="allow-scripts" style="{style}" srcdoc="{document}"></iframe>'
            )

        # One at a time: both answers come from one model, whose adapter is switched.
        gr.on(
            [button.click, question.submit],
            answer,
            [question, *settings],
            decodes,
            api_name="answer",
            concurrency_limit=1,
        )
    return page
