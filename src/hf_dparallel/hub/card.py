# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The model card: what the model is, how to use it, how it was trained, and what was measured."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from .reports import Report


TAGS = ("dparallel", "diffusion-lm", "masked-diffusion")
DRAFT_MARK = "<!-- Written by hf-dparallel, and anew at each push. To keep your edits, remove this line. -->"
# In the card that PEFT saves beside an adapter, as long as nobody has filled it in.
_PEFT_DRAFT_MARKS = ("# Model Card for Model ID", "[More Information Needed]")
_TEMPLATE = Path(__file__).parent / "templates" / "model_card.md"
_NATIVE_CLASSES = ("LLaDAForMaskedDiffusion", "DreamForMaskedDiffusion")


@dataclass
class ModelFacts:
    """What a card says about a model."""

    repo_id: str
    kind: str
    base_model: str | None
    recipe: dict[str, Any]
    tokenizer: str
    has_chat_template: bool = True
    adapter_config: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    report: Report | None = None
    dataset_name: str | None = None
    license: str | None = None
    tags: tuple[str, ...] = ()


def is_draft(text: str) -> bool:
    """Whether a card is one that a library wrote, and nobody has made their own."""
    return DRAFT_MARK in text or all(mark in text for mark in _PEFT_DRAFT_MARKS)


def is_empty(text: str) -> bool:
    """Whether a card has metadata at most, as the one that the Hub makes with a repository."""
    return not ModelCard(text, ignore_metadata_errors=True).text.strip()


def as_tags(tags: str | Sequence[str] | None) -> tuple[str, ...]:
    """One tag, several or none."""
    return (tags,) if isinstance(tags, str) else tuple(tags or ())


def make_model_card(facts: ModelFacts) -> ModelCard:
    """Returns the card of a model."""
    is_adapter = facts.kind == "adapter"
    peft_type = facts.adapter_config.get("peft_type", "")
    peft_type = str(getattr(peft_type, "value", peft_type)).lower()
    tags = [*TAGS, *(["peft", *([peft_type] if peft_type else [])] if is_adapter else []), *facts.tags]
    dataset = facts.dataset_name
    data = ModelCardData(
        base_model=facts.base_model,
        base_model_relation=("adapter" if is_adapter else "finetune") if facts.base_model else None,
        library_name="peft" if is_adapter else "transformers",
        pipeline_tag="text-generation",
        tags=list(dict.fromkeys(tags)),
        license=facts.license,
        datasets=[dataset] if dataset else None,
        model_name=facts.repo_id.split("/")[-1],
        eval_results=facts.report.eval_results() if facts.report else None,
    )
    architecture = facts.summary.get("architecture")
    return ModelCard.from_template(
        data,
        template_path=str(_TEMPLATE),
        draft_mark=DRAFT_MARK,
        facts=facts,
        title=facts.repo_id.split("/")[-1],
        native=architecture is None or architecture in _NATIVE_CLASSES,
        settings=_settings(facts),
        recipe=json.dumps(facts.recipe, indent=2),
    )


def _settings(facts: ModelFacts) -> dict[str, Any]:
    """The settings of the adapter and the training, as texts."""
    config = facts.adapter_config
    shown = {name: config[name] for name in ("r", "lora_alpha", "target_modules") if config.get(name)}
    if isinstance(shown.get("target_modules"), list | set):
        shown["target_modules"] = ", ".join(sorted(shown["target_modules"]))
    return {**shown, **facts.summary.get("settings", {})}
