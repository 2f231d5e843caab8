# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Publishing a distilled model or adapter: weights, recipe, tokenizer and card."""

import functools
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo, ModelCard
from transformers.utils import ADAPTER_CONFIG_NAME, CONFIG_NAME, GENERATION_CONFIG_NAME, logging

from .._version import __version__
from ..generation.configuration import DiffusionGenerationConfig
from .card import is_replaceable, make_model_card
from .contents import check_contents
from .files import (
    CALIBRATION_NAME,
    CARD_NAME,
    SUMMARY_NAME,
    TOKENIZER_PATTERNS,
    WEIGHT_PATTERNS,
    WEIGHT_SUFFIXES,
    Content,
    has_tokenizer,
    hub_name,
    kind_of,
    read_json,
    select_files,
)
from .upload import check_name, full_name, upload_files


logger = logging.get_logger(__name__)

_CUSTOM_GENERATE = Path(__file__).parent / "custom_generate" / "generate.py"
# What Trainer and trackers write beside the model: it tells much of this machine, and nobody can use it.
_IGNORED = "training_args.bin\n*.pt\n*.pth\ntrainer_state.json\ncheckpoint-*/\npush-*/\nruns/\nwandb/\n.env\n"


def push_model_to_hub(
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
    private: bool | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    token: str | None = None,
    commit_message: str | None = None,
) -> CommitInfo:
    r"""
    Publishes an adapter or a model, with its decoding recipe and a model card.

    One commit holds the weights (safetensors), the configuration, the recipe (`generation_config.json`), a card
    (`README.md`), `custom_generate/`, and the tokenizer if it is in the folder. All else in the folder stays there:
    optimizer states, `training_args.bin`, checkpoints, logs. Files that are edited on the way (the name of the base
    model) are not changed in the folder. [`files_to_push`] returns all these files and sends nothing.

    A card that you have written, here or on the Hub, is kept; one that hf-dparallel or PEFT has drafted is written
    anew. Weights of an earlier push that are not among the new ones are deleted in the same commit, and so are files
    of its tokenizer if the folder has a tokenizer.

    Args:
        folder (`str` or `os.PathLike`):
            What [`CertaintyForcingTrainer`] or `save_pretrained` has saved.
        repo_id (`str`):
            Name of the repository, by default one of yours. It is created if there is none.
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
        private, revision, create_pr, token, commit_message:
            As in [`~huggingface_hub.HfApi.upload_folder`]. A branch that does not exist is created.

    Returns:
        [`~huggingface_hub.CommitInfo`]

    Raises:
        ValueError: before anything is uploaded: if the recipe has no commit rule, the base model is a local folder, a
            file tells a token or a path of this machine, or the repository holds something else.
        OSError: if the folder holds no safetensors weights, or the Hub refuses.
    """
    folder = Path(folder)
    kind = kind_of(folder)
    repo_id = full_name(repo_id, token)
    files = files_to_push(
        folder,
        repo_id,
        base_model=base_model,
        generation_config=generation_config,
        report=report,
        example=example,
        dataset_name=dataset_name,
        license=license,
        tags=tags,
    )
    logger.info(f"Uploading {', '.join(files)}.")
    pushed = _describe(json.loads(_read(files[WEIGHT_PATTERNS[kind][0]])))
    return upload_files(
        files,
        repo_id,
        check_existing=functools.partial(_check_same_kind, repo_id=repo_id, pushed=pushed),
        replaces=[*WEIGHT_PATTERNS[kind], CALIBRATION_NAME, *(TOKENIZER_PATTERNS if has_tokenizer(folder) else [])],
        private=private,
        revision=revision,
        create_pr=create_pr,
        token=token,
        commit_message=commit_message or f"Upload {kind} with hf-dparallel",
    )


def files_to_push(
    folder: str | os.PathLike,
    repo_id: str,
    *,
    base_model: str | None = None,
    generation_config: DiffusionGenerationConfig | None = None,
    **facts: Any,
) -> dict[str, Content]:
    """Returns what [`push_model_to_hub`] would upload, after all checks that need no network.

    Args:
        folder, repo_id, base_model, generation_config, facts: as in [`push_model_to_hub`]; `facts` are those for the
            card, from `report` to `tags`.

    Returns:
        `dict[str, Path | bytes]`: by the name in the repository, the file here, or the content if it was made now.

    Raises:
        ValueError, OSError: as [`push_model_to_hub`].
    """
    check_name(repo_id)
    folder = Path(folder)
    kind = kind_of(folder)
    config = read_json(folder / WEIGHT_PATTERNS[kind][0])
    summary = read_json(folder / SUMMARY_NAME)
    base_model = check_base_model(
        base_model or config.get("base_model_name_or_path") or summary.get("base_model"), kind
    )
    recipe, calibration = _read_recipe(folder, generation_config)
    card = make_model_card(folder, repo_id, base_model, recipe, calibration, **facts)
    edited = {GENERATION_CONFIG_NAME: recipe.to_json_string().encode()}
    if kind == "adapter":
        edited[ADAPTER_CONFIG_NAME] = _to_json({**config, "base_model_name_or_path": base_model})
    if summary:
        edited[SUMMARY_NAME] = _to_json({**summary, "base_model": base_model})
    files: dict[str, Content] = {**select_files(folder, kind), **_companions(folder, card), **edited}
    if not calibration:
        files.pop(CALIBRATION_NAME, None)
    check_contents(files, folder)
    return files


def write_companions(folder: str | os.PathLike, card: ModelCard) -> None:
    """Writes what belongs to a model on the Hub beside its weights and recipe, unless the card is somebody's own.

    A `.gitignore` names the files that stay here, so that a plain upload of the folder is complete and clean.
    """
    folder = Path(folder)
    for name, content in {**_companions(folder, card), ".gitignore": _IGNORED.encode()}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def check_base_model(name: str | None, kind: str) -> str | None:
    """Returns the name of the base model on the Hub; `None` if it has none, which only a full model can do without.

    Raises:
        ValueError: if an adapter would be pushed that nobody else could use.
    """
    if found := hub_name(name):
        return found
    problem = f"is {name!r}, which is a folder of this machine or no name of a repository" if name else "is not known"
    if kind == "model":
        logger.warning(f"The base model {problem}, and is not mentioned. `base_model=` names it.")
        return None
    raise ValueError(
        f"The base model {problem}, so that nobody else could use the adapter. Name it as it is called on the Hub: "
        "`base_model=` (`--base_model GSAI-ML/LLaDA-8B-Instruct`)."
    )


def _read_recipe(
    folder: Path, given: DiffusionGenerationConfig | None
) -> tuple[DiffusionGenerationConfig, dict[str, Any]]:
    """The saved recipe with the settings that were given, and how it was found, if none were."""
    saved = folder / GENERATION_CONFIG_NAME
    recipe = DiffusionGenerationConfig.from_pretrained(folder) if saved.is_file() else DiffusionGenerationConfig()
    calibration = read_json(folder / CALIBRATION_NAME)
    if given is not None and given.settings():
        recipe, calibration = recipe.updated(**given.settings()), {}
    if recipe.commit_rule() is None:
        raise ValueError(
            f"`{saved}` "
            + ("has no commit rule" if saved.is_file() else "does not exist")
            + ", so that what is pushed would decode one token in each pass. Choose a rule: `generation_config="
            "DiffusionGenerationConfig(entropy_threshold=0.5)` (`--entropy_threshold 0.5`)."
        )
    return recipe, calibration


def _companions(folder: Path, card: ModelCard) -> dict[str, bytes]:
    """The code for models of other classes, and the card, unless somebody wrote the one in the folder."""
    companions = {
        "custom_generate/generate.py": _CUSTOM_GENERATE.read_bytes(),
        "custom_generate/requirements.txt": f"hf-dparallel>={__version__}\n".encode(),
    }
    own = folder / CARD_NAME
    if own.is_file() and not is_replaceable(own.read_text(encoding="utf-8")):
        logger.warning_once(f"`{own}` is kept as it is. Delete it to have a card written.")
        return companions
    return {**companions, CARD_NAME: f"{card}\n".encode()}


def _check_same_kind(existing: Sequence[str], read: Callable[[str], str], repo_id: str, pushed: str) -> None:
    """Checks that a repository holds nothing, or what the new commit is a new version of."""
    config = next((name for name in (CONFIG_NAME, ADAPTER_CONFIG_NAME) if name in existing), None)
    weights = next((name for name in existing if name.endswith(WEIGHT_SUFFIXES)), None)
    if config is not None:
        held = _describe(json.loads(read(config)))
    else:
        held = pushed if weights is None else f"weights of something else ({weights})"
    if held != pushed:
        raise ValueError(
            f"`repo_id={repo_id}` exists and holds {held}, and what is pushed is {pushed}. Choose another name, "
            "or delete that repository first."
        )


def _describe(config: dict[str, Any]) -> str:
    """Says what a configuration is of."""
    if "base_model_name_or_path" in config:
        return f"an adapter of {config['base_model_name_or_path']}"
    return f"a model of type {config.get('model_type')} ({', '.join(config.get('architectures') or ['no class'])})"


def _read(content: Content) -> bytes:
    return content if isinstance(content, bytes) else content.read_bytes()


def _to_json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
