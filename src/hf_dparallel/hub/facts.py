# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What is known of a model that is published: what its folder says, what the caller adds, and what was measured."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any

from transformers.utils import ADAPTER_CONFIG_NAME, GENERATION_CONFIG_NAME, logging

from hf_dparallel_rules.settings import settings_of

from ..generation.configuration import DiffusionGenerationConfig
from ..reports import TABLE_METRICS, read_json, read_report
from .files import CALIBRATION_NAME, LAUNCH_NAME, SUMMARY_NAME, hub_name


logger = logging.get_logger(__name__)

_SUMMARY_KINDS: dict[Any, tuple[str, ...]] = {
    str: ("base_model", "dataset_description"),
    bool: ("is_native", "is_trained", "shift_logits"),
    int: ("num_sequences",),
    dict: ("settings", "metrics", "versions"),
}
_DATA_SUFFIXES = (".json", ".jsonl", ".parquet", ".csv")


@dataclass
class ModelFacts:
    """What the files of a model or adapter on the Hub, and its card, are made from. See [`ModelFacts.read`]."""

    folder: Path
    repo_id: str
    # As it is named, and if the name is one on the Hub.
    named_base_model: str | None
    base_model: str | None
    recipe: DiffusionGenerationConfig
    has_tokenizer: bool
    # The configuration of the adapter, and the training's summary; empty if there was none.
    adapter: dict[str, Any]
    summary: dict[str, Any]
    # How the recipe was found, unless another one was given.
    calibration: dict[str, Any]
    # How an engine is started with it, if it was exported for one.
    launch: str | None
    # For the card.
    figures: dict[str, Any] | None
    answer: dict[str, Any]
    dataset_name: str | None
    license: str | None
    tags: list[str]

    @classmethod
    def read(
        cls,
        folder: str | os.PathLike,
        repo_id: str,
        *,
        base_model: str | None = None,
        generation_config: DiffusionGenerationConfig | None = None,
        report: str | os.PathLike | None = None,
        example: str | os.PathLike | None = None,
        dataset_name: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
    ) -> "ModelFacts":
        r"""
        Reads the facts from a folder, and adds what the caller knows.

        Args:
            folder (`str` or `os.PathLike`):
                What [`CertaintyForcingTrainer`] or `save_pretrained` has saved.
            repo_id (`str`):
                Name of the repository.
            base_model (`str`, *optional*):
                Name of the base model on the Hub. By default what the adapter says, which must then be such a name.
            generation_config ([`DiffusionGenerationConfig`], *optional*):
                Settings of the recipe that take the place of the saved ones.
            report (`str` or `os.PathLike`, *optional*):
                JSON file with measured figures for the card: what `hf-dparallel evaluate --json` or `demo` wrote.
            example (`str` or `os.PathLike`, *optional*):
                JSON file with an answer for the card and its widget: what `hf-dparallel generate --json` wrote.
            dataset_name (`str`, *optional*):
                Name on the Hub of the data that it was trained on, for the card.
            license (`str`, *optional*):
                Identifier of its licence (`"mit"`, `"apache-2.0"`), for the card.
            tags (`str` or `list[str]`, *optional*):
                Tags of the card beside the default ones.

        Raises:
            ValueError: if a file of the folder, the report or the example is none.
        """
        folder = Path(folder)
        adapter, summary = _read(folder / ADAPTER_CONFIG_NAME), _read(folder / SUMMARY_NAME)
        check_summary(summary, folder / SUMMARY_NAME)
        named = base_model or adapter.get("base_model_name_or_path") or summary.get("base_model")
        is_saved = (folder / GENERATION_CONFIG_NAME).is_file()
        recipe = DiffusionGenerationConfig.from_pretrained(folder) if is_saved else DiffusionGenerationConfig()
        given = generation_config.settings() if generation_config else {}
        recipe = recipe.updated(**given)
        launch = folder / LAUNCH_NAME
        return cls(
            folder=folder,
            repo_id=repo_id,
            named_base_model=named,
            base_model=hub_name(named),
            recipe=recipe,
            has_tokenizer=(folder / "tokenizer_config.json").is_file(),
            adapter=adapter,
            summary=summary,
            calibration={} if given else _read(folder / CALIBRATION_NAME),
            launch=launch.read_text(encoding="utf-8") if launch.is_file() else None,
            figures=None if report is None else read_figures(report, recipe.settings()),
            answer={} if example is None else read_example(example),
            dataset_name=dataset_name,
            license=license,
            tags=[tags] if isinstance(tags, str) else tags or [],
        )

    def check_complete(self) -> None:
        """Refuses a recipe without a commit rule, and an adapter that nobody else could use."""
        check_base_model(self.named_base_model, "adapter" if self.adapter else "model")
        if self.recipe.commit_rule() is None:
            saved = self.folder / GENERATION_CONFIG_NAME
            problem = "has no commit rule" if saved.is_file() else "does not exist"
            raise ValueError(
                f"`{saved}` {problem}, so that what is pushed would decode one token in each pass. Choose a rule: "
                "`generation_config=DiffusionGenerationConfig(entropy_threshold=0.5)` (`--entropy_threshold 0.5`)."
            )


def check_summary(summary: Mapping[str, Any], path: Path) -> None:
    """Refuses what no training has written: values go into the card, and into its code."""
    metrics = summary.get("metrics")
    kinds = [(name, summary.get(name), kind) for kind, names in _SUMMARY_KINDS.items() for name in names]
    if isinstance(metrics, dict):
        kinds += [(f"metrics.{name}", value, int | float) for name, value in metrics.items()]
    for name, value, kind in kinds:
        if not isinstance(value, kind | None):
            raise ValueError(f"`{path}` has {name}={value!r}, which is no {kind}. Correct it, or remove the file.")


def check_base_model(name: str | None, kind: str) -> None:
    """Refuses an adapter whose base model others cannot find, and warns of such a model, which can do without."""
    if hub_name(name) is not None:
        return
    problem = f"is {name!r}, which is a folder of this machine or no name of a repository" if name else "is not known"
    if kind == "model":
        logger.warning(f"The base model {problem}, and is not mentioned. `base_model=` names it.")
        return
    raise ValueError(
        f"The base model {problem}, so that nobody else could use the adapter. Name it as it is called on the Hub: "
        "`base_model=` (`--base_model GSAI-ML/LLaDA-8B-Instruct`)."
    )


def read_figures(path: str | os.PathLike, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Reads a report: the figures of one model, or `rows` of several.

    Returns `rows`; `own`, the last of them with the commit rule of the recipe, or the last one if they do not say
    theirs; `dataset`; and `num_prompts`, or `None`.
    """
    report = read_report(path)
    rows = report.get("rows", [{"method": "This model", **report}])
    missing = [name for name in TABLE_METRICS if not all(isinstance(row.get(name), int | float) for row in rows)]
    if missing or not rows:
        raise ValueError(
            f"`report={path}` has no figures for {', '.join(missing or TABLE_METRICS)}. Give what `hf-dparallel "
            "evaluate --json FILE`, or `hf-dparallel demo` (report.json), wrote."
        )
    dataset = str(report.get("dataset", "prompts of the author"))
    if hub_name(dataset) is None or dataset.endswith(_DATA_SUFFIXES):
        # The folder of a prompts file is not for the public.
        dataset = PureWindowsPath(dataset).name
    known = settings_of("rule")
    rules = [{name: value for name, value in row.get("recipe", {}).items() if name in known} for row in rows]
    matching = [row for row, rule in zip(rows, rules, strict=True) if rule and rule.items() <= recipe.items()]
    if any(rules) and not matching:
        own = ", ".join(f"{name}={recipe[name]}" for name in known if recipe.get(name) is not None)
        raise ValueError(
            f"`report={path}` has no figures for this model's recipe, {own}. Measure it with `hf-dparallel evaluate`."
        )
    num_prompts = report.get("num_prompts") or report.get("conditions", {}).get("num_prompts")
    return {"rows": rows, "own": (matching or rows)[-1], "dataset": dataset, "num_prompts": num_prompts}


def read_example(path: str | os.PathLike) -> dict[str, Any]:
    """Reads an answer with its prompt and its cost, which `hf-dparallel generate --json` wrote."""
    example = read_json(Path(path))
    kinds = {"prompt": str, "text": str, "nfe": int, "tokens_per_forward": float}
    missing = [name for name, kind in kinds.items() if not isinstance(example.get(name), kind)]
    if missing:
        raise ValueError(f"`example={path}` has no {missing[0]}. Give what `hf-dparallel generate --json FILE` wrote.")
    return example


def _read(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
