# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The model card: what the model is, how to use it, how it was trained, and what was measured."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData
from transformers import AutoTokenizer
from transformers.utils import ADAPTER_CONFIG_NAME

from ..generation.configuration import DiffusionGenerationConfig
from ..models.base import MaskedDiffusionModel
from ..reports import escape_markdown, markdown_table
from .files import SUMMARY_NAME, has_tokenizer, read_json
from .reports import read_example, read_report


TAGS = ("dparallel", "diffusion-lm", "masked-diffusion")
DRAFT_MARK = "<!-- Written by hf-dparallel, and anew at each push. To keep your edits, remove this line. -->"
# In the card that PEFT saves beside an adapter, as long as nobody has filled it in.
_PEFT_DRAFT_MARKS = ("# Model Card for Model ID", "[More Information Needed]")
# Of the figures that `hf-dparallel inspect --figures` draws, the one for the card.
PICTURE_NAME = "confidence_maps.png"
_PROMPT = "Mia has 14 pens. Mia finds 6 more. Mia sells 5 pens. How many pens are left?"
_TEMPLATE = Path(__file__).parent / "templates" / "model_card.md"


def make_model_card(
    folder: str | os.PathLike,
    repo_id: str,
    base_model: str | None,
    recipe: DiffusionGenerationConfig,
    calibration: Mapping[str, Any] | None = None,
    report: str | os.PathLike | None = None,
    example: str | os.PathLike | None = None,
    dataset_name: str | None = None,
    license: str | None = None,
    tags: str | Sequence[str] | None = None,
) -> ModelCard:
    """Returns the card of a model or adapter that was saved in `folder`, from the facts that the folder holds.

    `calibration` says how the recipe was found; `report` and the arguments after it are as in [`push_model_to_hub`].

    Raises:
        ValueError: if the report is none, or the example.
    """
    folder, title = Path(folder), repo_id.split("/")[-1]
    adapter, summary = read_json(folder / ADAPTER_CONFIG_NAME), read_json(folder / SUMMARY_NAME)
    measured = read_report(report, recipe.settings()) if report is not None else None
    answer = read_example(example) if example is not None else {"prompt": _PROMPT}
    has_chat_template = _has_chat_template(folder if has_tokenizer(folder) else base_model)
    tokenizer = repo_id if has_tokenizer(folder) or base_model is None else base_model
    settings = _settings(adapter, summary)
    tags = [tags] if isinstance(tags, str) else list(tags or ())
    data = ModelCardData(
        base_model=base_model,
        base_model_relation=("adapter" if adapter else "finetune") if base_model else None,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        tags=list(dict.fromkeys([*TAGS, *_adapter_tags(adapter), *tags])),
        license=license,
        datasets=[dataset_name] if dataset_name else None,
        model_name=title,
        eval_results=measured.eval_results() if measured else None,
        widget=[_widget(answer, has_chat_template)],
    )
    return ModelCard.from_template(
        data,
        template_path=str(_TEMPLATE),
        draft_mark=DRAFT_MARK,
        title=title,
        repo_id=repo_id,
        is_adapter=bool(adapter),
        is_native="architecture" not in summary or summary["architecture"] in _native_classes(),
        tokenizer=tokenizer,
        has_chat_template=has_chat_template,
        prompt=json.dumps(answer["prompt"], ensure_ascii=False),
        example=answer if "text" in answer else None,
        picture=PICTURE_NAME if (folder / PICTURE_NAME).is_file() else None,
        mask_token_id=recipe.mask_token_id,
        recipe=json.dumps(recipe.settings(), indent=2),
        calibration=json.dumps(calibration, indent=2) if calibration else None,
        report=measured,
        settings=markdown_table(["Setting", "Value"], settings, num_text_columns=2) if settings else None,
        summary=summary,
        plain=escape_markdown,
    )


def is_replaceable(text: str) -> bool:
    """Whether nobody wrote this card: a library drafted it, or it has metadata at most, as in a new repository."""
    is_draft = DRAFT_MARK in text or all(mark in text for mark in _PEFT_DRAFT_MARKS)
    return is_draft or not ModelCard(text, ignore_metadata_errors=True).text.strip()


def _native_classes() -> set[str]:
    """The model classes of this package, which decode without further ado."""
    classes = MaskedDiffusionModel.__subclasses__()
    return {cls.__name__ for cls in classes if cls.__module__.startswith(f"{__name__.partition('.')[0]}.")}


def _has_chat_template(tokenizer: str | Path | None) -> bool:
    """Whether a tokenizer has a chat template. If it is not on this machine, yes: nearly all have one."""
    if tokenizer is None:
        return True
    try:
        return AutoTokenizer.from_pretrained(tokenizer, local_files_only=True).chat_template is not None
    except (OSError, ValueError):
        return True


def _widget(answer: Mapping[str, Any], is_chat: bool) -> dict[str, Any]:
    """A prompt, and its answer if there is one, as the widget on the page of a model takes them."""
    prompt = answer["prompt"]
    asked = {"messages": [{"role": "user", "content": prompt}]} if is_chat else {"text": prompt}
    return {**asked, "output": {"text": answer["text"]}} if "text" in answer else asked


def _adapter_tags(adapter: Mapping[str, Any]) -> list[str]:
    return ["peft", str(adapter.get("peft_type", "peft")).lower()] if adapter else []


def _settings(adapter: Mapping[str, Any], summary: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The settings of the adapter and of the training, with their values."""
    shown = {name: adapter[name] for name in ("r", "lora_alpha", "target_modules") if adapter.get(name)}
    if isinstance(shown.get("target_modules"), list):
        shown["target_modules"] = ", ".join(sorted(shown["target_modules"]))
    shown |= summary.get("settings", {})
    return [(f"`{name}`", value) for name, value in shown.items()]
