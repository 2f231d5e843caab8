# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A page that answers a question with a base model and with its student: `python app.py`."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr
from answers import STUDENT, Answer, Pair

from hf_dparallel import pass_colors
from hf_dparallel.serving.web_page import EXAMPLES


# By their names.
QUESTIONS = {question: question for question in os.environ.get("EXAMPLES", "").splitlines()}
QUESTIONS = QUESTIONS or {name: first for name, (first, *_) in EXAMPLES.items()}
CSS = f"""
.gradio-container {{ color-scheme: light; }}
.dark .gradio-container, .gradio-container.dark {{ color-scheme: dark; }}
{pass_colors.CSS}
.answer {{ line-height: 1.9; overflow-wrap: anywhere; white-space: pre-wrap; min-height: 6rem; }}
.by-pass {{ border-radius: 0.25rem; padding: 0.1rem 0; }}
.by-pass.new {{ box-shadow: 0 0 0 1px var(--body-text-color); }}
.mask {{ display: inline-block; width: 1.1ch; height: 1em; margin: 0 0.15ch; vertical-align: -0.15em;
  border-radius: 0.2rem; }}
.cost, .fewer {{ font-size: 1.5rem; font-weight: bold; font-variant-numeric: tabular-nums; }}
.fewer {{ text-align: center; }}
.legend i {{ display: inline-block; width: 1rem; height: 1em; vertical-align: -0.15em; border-radius: 0.2rem; }}
.legend .ramp {{ width: 6rem; }}
.legend .mask {{ --confidence: 0.5; }}
"""
LEGEND = (
    '<p class="legend">first pass <i class="ramp"></i> last pass &emsp; '
    '<i class="mask"></i> a mask, filled as high as its confidence</p>'
)

pair = Pair()


def introduction() -> str:
    """Names the models, with links to their cards if they are on the Hub."""
    if Path(STUDENT).exists():
        models = "The small model that comes with hf-dparallel answers a question without and with its adapter."
    else:
        base, student = (f"[{name}](https://huggingface.co/{name})" for name in (pair.base, STUDENT))
        models = f"{base} and its student {student} answer the same question."
    return (
        f"# hf-dparallel: a diffusion model and its student\n{models} The student was distilled with "
        "[dParallel](https://huggingface.co/papers/2509.26488) to be certain of many tokens at once."
    )


def answer(question: str, threshold: float, base_too: bool) -> Iterator[dict[Any, Any]]:
    """Answers, and plays both answers at the same speed."""
    if not question.strip():
        raise gr.Error("Ask a question first.")
    both = pair.answers(question, threshold, base_too)
    longest = max(each.nfe for each in both)
    yield {answers: both, passes: gr.Slider(0, longest, 0, visible=True), replay: gr.Button(visible=True), fewer: ""}
    yield from play(both)


def play(both: tuple[Answer, Answer]) -> Iterator[dict[Any, Any]]:
    """Shows one pass after the other, in six seconds, and then what the student has saved."""
    longest = max(each.nfe for each in both)
    for number in range(longest + 1):
        yield {**show(both, number), passes: number}
        time.sleep(min(6 / longest, 0.3))
    times = both[0].nfe / both[1].nfe
    verdict = f'<p class="fewer">{times:.{int(times < 10)}f} times fewer passes</p>' if times > 1 else ""
    yield {**show(both, longest), fewer: verdict}


def show(both: tuple[Answer, Answer], number: int) -> dict[Any, Any]:
    """Shows both partial answers after `number` passes."""
    return {base: both[0].to_html(number), student: both[1].to_html(number)}


with gr.Blocks(title="hf-dparallel") as page:
    gr.Markdown(introduction())
    answers = gr.State()
    question = gr.Textbox(next(iter(QUESTIONS.values())), label="Question")
    gr.Examples(list(QUESTIONS.values()), question, example_labels=list(QUESTIONS))
    with gr.Row():
        threshold = gr.Slider(
            0,
            3,
            pair.recipe.entropy_threshold or 0.5,
            step=0.05,
            label="Entropy threshold (nats)",
            info="Tokens of at most this entropy are decided together. Stay below ln 2 = 0.69.",
        )
        base_too = gr.Checkbox(label="The base model uses the threshold, too", info="Else one token per pass.")
    # Until the browser has all of the page, a click would do nothing.
    button = gr.Button("Answer", variant="primary", interactive=False)
    page.load(lambda: gr.Button(interactive=True), None, button, api_visibility="private", show_progress="hidden")
    with gr.Row():
        with gr.Column():
            gr.Markdown("### Base model")
            base = gr.HTML(elem_id="base")
        with gr.Column():
            gr.Markdown("### Student")
            student = gr.HTML(elem_id="student")
    fewer = gr.HTML(elem_id="fewer")
    with gr.Row():
        replay = gr.Button("Replay", visible=False)
        passes = gr.Slider(0, 1, 0, step=1, label="Pass", visible=False)
    gr.HTML(LEGEND)
    shown = [base, student, passes, replay, fewer]
    # One at a time: both answers come from one model, whose adapter is switched.
    gr.on(
        [button.click, question.submit],
        answer,
        inputs=[question, threshold, base_too],
        outputs=[*shown, answers],
        api_name="answer",
        show_progress="hidden",
        concurrency_limit=1,
    )
    replay.click(play, answers, shown, api_visibility="private", show_progress="hidden")
    passes.input(show, [answers, passes], [base, student], api_visibility="private", show_progress="hidden")

if __name__ == "__main__":
    page.launch(css=CSS)
