# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Cards, and the one of a model: what it is, how to use it, how it was trained, and what was measured."""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import CardData, EvalResult, ModelCardData, RepoCard
from transformers import AutoTokenizer

from ..reports import escape_markdown, markdown_table, results_table
from .facts import ModelFacts


TAGS = ("dparallel", "diffusion-lm", "masked-diffusion")
DRAFT_MARK = "<!-- Written by hf-dparallel, and anew at each push. To keep your edits, remove this line. -->"
# In the card that PEFT saves beside an adapter, as long as nobody has filled it in.
_PEFT_DRAFT_MARKS = ("# Model Card for Model ID", "[More Information Needed]")
# The figure of `hf-dparallel inspect --figures` that the card shows.
PICTURE_NAME = "confidence_maps.png"
_PROMPT = "Mia has 14 pens. Mia finds 6 more. Mia sells 5 pens. How many pens are left?"
_TEMPLATES = Path(__file__).parent / "templates"
_METRIC_NAMES = {
    "nfe": "Forward passes per answer",
    "tokens_per_forward": "Tokens per forward pass",
    "latency_s": "Seconds per answer",
    "accuracy": "Accuracy",
}


def fill_card(template: str, data: CardData, repo_id: str, **values: Any) -> RepoCard:
    """Returns a card in the words of a template, with its metadata and the mark of a draft."""
    return RepoCard.from_template(
        data,
        template_path=str(_TEMPLATES / template),
        draft_mark=DRAFT_MARK,
        title=repo_id.split("/")[-1],
        repo_id=repo_id,
        plain=escape_markdown,
        as_json=functools.partial(json.dumps, indent=2, ensure_ascii=False),
        **values,
    )


def make_model_card(facts: ModelFacts) -> RepoCard:
    """Returns the card of a model or adapter."""
    base_model, adapter, figures = facts.base_model, facts.adapter, facts.figures
    answer = facts.answer or {"prompt": _PROMPT}
    has_chat_template = _has_chat_template(facts.folder if facts.has_tokenizer else base_model)
    settings = _settings(facts)
    # What `hf-dparallel convert` has written is not; without the certainty loss, training makes a teacher.
    is_trained = facts.summary.get("is_trained", True)
    adapter_tags = ["peft", str(adapter.get("peft_type", "peft")).lower()] if adapter else []
    data = ModelCardData(
        base_model=base_model,
        base_model_relation=("adapter" if adapter else "finetune") if base_model else None,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        tags=list(dict.fromkeys([*TAGS, *adapter_tags, *facts.tags])),
        license=facts.license,
        datasets=[facts.dataset_name] if facts.dataset_name else None,
        model_name=facts.repo_id.split("/")[-1],
        eval_results=_eval_results(figures) if figures else None,
        widget=[_widget(answer, has_chat_template)],
    )
    return fill_card(
        "model_card.md",
        data,
        facts.repo_id,
        facts=facts,
        is_native=facts.summary.get("is_native", True),
        is_trained=is_trained,
        is_student=is_trained and facts.summary.get("settings", {}).get("certainty_weight") != 0,
        tokenizer=facts.repo_id if facts.has_tokenizer or base_model is None else base_model,
        has_chat_template=has_chat_template,
        prompt=answer["prompt"],
        picture=PICTURE_NAME if (facts.folder / PICTURE_NAME).is_file() else None,
        results=results_table(figures["rows"], figures["own"]) if figures else None,
        settings=markdown_table(["Setting", "Value"], settings, num_text_columns=2) if settings else None,
    )


def is_replaceable(text: str) -> bool:
    """Returns whether nobody wrote this card: it is a library's draft, or has at most metadata (a new repository)."""
    is_draft = DRAFT_MARK in text or all(mark in text for mark in _PEFT_DRAFT_MARKS)
    return is_draft or not RepoCard(text, ignore_metadata_errors=True).text.strip()


def _eval_results(figures: Mapping[str, Any]) -> list[EvalResult]:
    """Returns this model's figures for the metadata of a card."""
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=figures["dataset"],
            dataset_name=figures["dataset"],
            metric_type=name,
            metric_name=title,
            metric_value=round(figures["own"][name], 4),
        )
        for name, title in _METRIC_NAMES.items()
    ]


def _has_chat_template(tokenizer: str | Path | None) -> bool:
    """Returns whether a tokenizer has a chat template; if it is not on this machine, `True`: nearly all have."""
    if tokenizer is None:
        return True
    try:
        return AutoTokenizer.from_pretrained(tokenizer, local_files_only=True).chat_template is not None
    except (OSError, ValueError):
        return True


def _widget(answer: Mapping[str, Any], is_chat: bool) -> dict[str, Any]:
    """Returns a prompt, and its answer if there is one, for the widget on a model's page."""
    prompt = answer["prompt"]
    asked = {"messages": [{"role": "user", "content": prompt}]} if is_chat else {"text": prompt}
    return asked | ({"output": {"text": answer["text"]}} if "text" in answer else {})


def _settings(facts: ModelFacts) -> list[tuple[str, Any]]:
    """Returns the settings of adapter and training with their values."""
    adapter = facts.adapter
    shown = {name: adapter[name] for name in ("r", "lora_alpha", "target_modules") if adapter.get(name)}
    if isinstance(shown.get("target_modules"), list):
        shown["target_modules"] = ", ".join(sorted(shown["target_modules"]))
    shown |= facts.summary.get("settings", {})
    return [(f"`{name}`", value) for name, value in shown.items()]
