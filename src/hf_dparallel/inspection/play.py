# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The page of `hf-dparallel play` and of the Space: a base model and its student answer a question. Needs gradio."""

import html
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoModelForMaskedLM, AutoTokenizer, MaxTimeCriteria, StoppingCriteriaList

from ..data.chats import encode_chat
from ..generation.adapters import active_adapter, set_adapter
from ..generation.compatibility import longest_sequence
from ..generation.configuration import DiffusionGenerationConfig, recipe_of
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
    "with [dParallel](https://huggingface.co/papers/2509.26488) to be certain of many tokens at once. Each answer has "
    "{seconds} seconds."
)
# For the decode of each of the two answers: one visitor shall not keep the others waiting.
_SECONDS = 30


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
        """Decodes the answers of both, that of the base model with one token per pass.

        Raises:
            ValueError: if question and canvas are longer than what the model was trained for.
        """
        messages = [{"role": "user", "content": question}]
        arguments = self.recipe.chat_template_kwargs or {}
        prompt_ids = encode_chat(self.tokenizer, messages, **arguments)
        fast = self.recipe.updated(**settings)

        longest = longest_sequence(self.model)
        length = len(prompt_ids) + (fast.max_new_tokens or 0)
        if longest is not None and length > longest:
            raise ValueError(
                f"The question has {len(prompt_ids)} tokens, and with its canvas {length}, more than the {longest} "
                "that the model was trained for. Shorten one of them."
            )

        try:
            set_adapter(self.model, None)
            base = self._decode(prompt_ids, fast.one_token_per_pass(), "Base model")
        finally:
            set_adapter(self.model, self.adapter)
        student = self._decode(prompt_ids, fast, "Student")
        return base, student

    def _decode(self, prompt_ids: list[int], recipe: DiffusionGenerationConfig, name: str) -> DecodeTrace:
        patience = StoppingCriteriaList([MaxTimeCriteria(_SECONDS)])
        return trace_decode(self.model, self.tokenizer, prompt_ids, recipe, name, stopping_criteria=patience)


def make_page(student: str) -> "gr.Blocks":
    """Loads a student and its base model, and returns the page that plays their answers.

    Args:
        student (`str`): the adapter, which says itself what its base is; or a model without any.
    """
    import gradio as gr

    pair = Pair(student)

    def answer(question: str, threshold: float, length: int) -> str:
        # Errors are for the page, not for the log.
        if not question.strip():
            raise gr.Error("Ask a question first.", print_exception=False)
        try:
            both = pair.answer(question, entropy_threshold=threshold, max_new_tokens=length)
        except ValueError as error:
            raise gr.Error(str(error), print_exception=False) from error

        document = html.escape(make_html(both, question, plays=True))
        style = "width: 100%; height: 42rem; border: 0"
        return f'<iframe title="Both answers" sandbox="allow-scripts" style="{style}" srcdoc="{document}"></iframe>'

    with gr.Blocks(title="hf-dparallel", fill_width=True) as page:
        gr.Markdown(_INTRODUCTION.format(student=Path(student).name, seconds=_SECONDS))
        question = gr.Textbox(QUESTIONS[0], label="Question")
        gr.Examples(list(QUESTIONS), question)
        with gr.Row():
            threshold = pair.recipe.entropy_threshold or 0.5
            length = pair.recipe.max_new_tokens or 128
            settings = [
                gr.Slider(0, 3, threshold, step=0.05, label="Entropy threshold (nats)"),
                gr.Slider(32, 512, length, step=32, label="Tokens of the canvas"),
            ]

        # Until the browser has all of the page, a click would do nothing.
        button = gr.Button("Answer", variant="primary", interactive=False)
        page.load(lambda: gr.Button(interactive=True), None, button, api_visibility="private", show_progress="hidden")

        # One at a time: both answers come from one model, whose adapter is switched.
        gr.on(
            [button.click, question.submit],
            answer,
            [question, *settings],
            gr.HTML(),
            api_name="answer",
            concurrency_limit=1,
        )
    return page
