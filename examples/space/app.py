# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A page that answers a question with a base model and with its student: `python app.py`."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import gradio as gr
from answers import STUDENT, Pair


SECONDS_PER_PASS = 0.1
EXAMPLES = os.environ.get(
    "EXAMPLES",
    "Mia has 14 pens. Mia finds 6 more. Mia sells 5 pens. How many pens are left?\n"
    "Leo has 9 coins. Then Leo loses 4 of them. Later Leo finds 7 more. How many coins are left?",
).splitlines()
CSS = """
.answer { line-height: 1.9; overflow-wrap: anywhere; white-space: pre-wrap; min-height: 6rem; }
.token { border-radius: 0.25rem; padding: 0.1rem 0; background: oklch(0.89 0.09 var(--hue)); }
.dark .token { background: oklch(0.42 0.09 var(--hue)); }
.token.new { box-shadow: 0 0 0 2px var(--color-accent); }
.token.mask { display: inline-block; width: 1.1ch; height: 0.9em; margin: 0 0.15ch; vertical-align: -0.1em;
  background: var(--border-color-primary); }
.cost { font-variant-numeric: tabular-nums; color: var(--body-text-color-subdued); }
"""

pair = Pair()


def introduction() -> str:
    """Which models these are, with links to their cards if they are on the Hub."""
    if Path(STUDENT).exists():
        models = "The small model that comes with hf-dparallel answers a question without and with its adapter."
    else:
        base, student = (f"[{name}](https://huggingface.co/{name})" for name in (pair.base, STUDENT))
        models = f"{base} and its student {student} answer the same question."
    return (
        f"# Base model and student, side by side\n{models} The student was distilled with "
        "[dParallel](https://huggingface.co/papers/2509.26488) to be certain of many tokens at once. The colour of a "
        "token says which pass decided it."
    )


def answer(question: str, threshold: float, base_too: bool) -> Iterator[tuple[str, str]]:
    """Plays both answers at the same speed."""
    if not question.strip():
        raise gr.Error("Ask a question first.")
    for frame in pair.play(question, threshold, base_too):
        yield frame
        time.sleep(SECONDS_PER_PASS)


with gr.Blocks(title="dParallel") as page:
    gr.Markdown(introduction())
    question = gr.Textbox(EXAMPLES[0], label="Question")
    gr.Examples(EXAMPLES, question)
    with gr.Row():
        threshold = gr.Slider(
            0,
            1.5,
            pair.recipe.entropy_threshold or 0.5,
            step=0.05,
            label="Entropy threshold (nats)",
            info="Tokens of at most this entropy are decided together. Smaller is surer and slower.",
        )
        base_too = gr.Checkbox(label="The base model uses the threshold, too", info="Else one token per pass.")
    button = gr.Button("Answer", variant="primary")
    with gr.Row():
        with gr.Column():
            gr.Markdown("### Base model")
            base = gr.HTML(elem_id="base")
        with gr.Column():
            gr.Markdown("### Student")
            student = gr.HTML(elem_id="student")
    # One at a time: both answers come from one model, whose adapter is switched.
    gr.on(
        [button.click, question.submit],
        answer,
        inputs=[question, threshold, base_too],
        outputs=[base, student],
        api_name="answer",
        show_progress="hidden",
        concurrency_limit=1,
    )

if __name__ == "__main__":
    page.launch(css=CSS)
