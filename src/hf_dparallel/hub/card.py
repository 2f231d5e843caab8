# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The card of a model: what it is, how to use it, how it was trained, and what was measured."""

import json
import os
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData
from transformers.utils import ADAPTER_CONFIG_NAME

from ..generation.configuration import DiffusionGenerationConfig
from ..models.adapters import SUMMARY_NAME
from ..reports import TABLE_METRICS, escape_markdown, markdown_table, read_json, read_report, results_table


CARD_NAME = "README.md"
TAGS = ("dparallel", "diffusion-lm")
_TEMPLATE = Path(__file__).parent / "templates" / "model_card.md"
_DRAFT_MARK = "<!-- Written by hf-dparallel, and anew at each push. To keep your edits, remove this line. -->"
# In the card that PEFT saves beside an adapter, as long as nobody has filled it in.
_PEFT_MARK = "[More Information Needed]"
_ADAPTER_SETTINGS = ("peft_type", "r", "lora_alpha", "target_modules")


def make_card(
    folder: str | os.PathLike,
    repo_id: str,
    recipe: DiffusionGenerationConfig,
    *,
    base_model: str | None = None,
    report: str | os.PathLike | None = None,
    dataset_name: str | None = None,
    license: str | None = None,
    tags: str | list[str] | None = None,
) -> ModelCard:
    """Returns the card of an adapter or a model that was saved in a folder.

    Args:
        folder (`str` or `os.PathLike`): what [`CertaintyForcingTrainer`] or `save_pretrained` has saved.
        repo_id (`str`): name of the repository.
        recipe ([`DiffusionGenerationConfig`]): how it decodes.
        base_model (`str`, *optional*): name of the base model on the Hub.
        report (`str` or `os.PathLike`, *optional*): JSON file with measured figures: what `hf-dparallel evaluate
            --json` or `demo` wrote.
        dataset_name, license (`str`, *optional*): name of the training data on the Hub; identifier of the licence.
        tags (`str` or `list[str]`, *optional*): tags of the card beside the default ones.

    Raises:
        ValueError: if a file is no JSON, or the report has no figures.
    """
    adapter = read_if_saved(Path(folder, ADAPTER_CONFIG_NAME))
    summary = read_if_saved(Path(folder, SUMMARY_NAME))
    settings = {name: adapter[name] for name in _ADAPTER_SETTINGS if adapter.get(name)} | summary.get("settings", {})
    lines = [(f"`{name}`", value) for name, value in settings.items()]

    own_tags = [tags] if isinstance(tags, str) else tags or []
    relation = "adapter" if adapter else "finetune"
    data = ModelCardData(
        base_model=base_model,
        base_model_relation=base_model and relation,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        tags=list(dict.fromkeys([*TAGS, *own_tags])),
        license=license,
        datasets=dataset_name and [dataset_name],
    )

    tokenizer = base_model or repo_id
    if Path(folder, "tokenizer_config.json").is_file():
        tokenizer = repo_id
    return ModelCard.from_template(
        data,
        template_path=str(_TEMPLATE),
        mark=_DRAFT_MARK,
        repo_id=repo_id,
        is_adapter=bool(adapter),
        is_exact=bool(adapter.get("alora_invocation_tokens")),
        chat={name: repr(value) for name, value in (recipe.chat_template_kwargs or {}).items()},
        is_native=summary.get("is_native", True),
        shift_logits=bool(summary.get("shift_logits")),
        tokenizer=tokenizer,
        mask_token_id=recipe.mask_token_id,
        recipe=json.dumps(recipe.settings(), indent=2, ensure_ascii=False),
        results=report and _results(report),
        num_sequences=summary.get("num_sequences"),
        settings=markdown_table(["Setting", "Value"], lines, 2) if lines else "",
        metrics=summary.get("metrics", {}),
        plain=escape_markdown,
    )


def read_if_saved(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file, an empty one if there is no such file."""
    return read_json(path) if path.is_file() else {}


def own_card(folder: Path) -> str | None:
    """Returns the card in a folder if somebody wrote or edited it, `None` for one as a library writes it."""
    card = folder / CARD_NAME
    if not card.is_file():
        return None

    text = card.read_text(encoding="utf-8")
    is_draft = _DRAFT_MARK in text or _PEFT_MARK in text
    return None if is_draft else text


def _results(path: str | os.PathLike) -> str:
    """Returns the table of a report: of one model, or of the `rows` of several."""
    report: dict[str, Any] = read_report(path)
    rows = report.get("rows", [{"method": "This model", **report}])
    if not rows or not all(isinstance(row.get(name), int | float) for row in rows for name in TABLE_METRICS):
        raise ValueError(
            f"`report={path}` has no figures for {', '.join(TABLE_METRICS)}. Give what `hf-dparallel evaluate --json "
            "FILE`, or `hf-dparallel demo` (report.json), wrote."
        )
    return results_table(rows)
