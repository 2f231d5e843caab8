# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Publishing a distilled model or adapter: weights, recipe and card, and the tokenizer if it is not the base's."""

import functools
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import ADAPTER_CONFIG_NAME, CONFIG_NAME, GENERATION_CONFIG_NAME, logging

from .._version import __version__
from ..generation.configuration import DiffusionGenerationConfig
from .card import ModelFacts, as_tags, is_draft, make_model_card
from .files import (
    CARD_NAME,
    SUMMARY_NAME,
    TOKENIZER_PATTERNS,
    WEIGHT_PATTERNS,
    WEIGHT_SUFFIXES,
    Content,
    check_contents,
    is_local_path,
    is_one_of,
    kind_of,
    read_json,
    select_files,
)
from .reports import read_report
from .upload import full_name, upload_files


logger = logging.get_logger(__name__)

_CUSTOM_GENERATE = Path(__file__).parent / "custom_generate" / "generate.py"


def push_model_to_hub(
    folder: str | os.PathLike,
    repo_id: str,
    *,
    base_model: str | None = None,
    generation_config: DiffusionGenerationConfig | None = None,
    report: str | os.PathLike | None = None,
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
    (`README.md`), `custom_generate/`, and the files of the tokenizer unless it is that of the base model. All else in
    the folder stays there: optimizer states, `training_args.bin`, checkpoints, logs. Files that are edited on the way
    (the name of the base model) are not changed in the folder.

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
    files, left_out = select_files(folder, kind)
    summary = read_json(folder / SUMMARY_NAME)
    adapter_config = read_json(folder / ADAPTER_CONFIG_NAME) if kind == "adapter" else {}
    recorded = adapter_config.get("base_model_name_or_path") or summary.get("base_model")
    base_model = check_base_model(base_model or recorded, kind)
    recipe = _read_recipe(folder, generation_config)
    repo_id = full_name(repo_id, token)
    tokenizer, is_own = _tokenizer(folder, kind, base_model, token)
    if not is_own:
        files = {name: path for name, path in files.items() if not is_one_of(name, TOKENIZER_PATTERNS)}
    files |= _edited_files(adapter_config, summary, base_model, recipe)
    facts = ModelFacts(
        repo_id=repo_id,
        kind=kind,
        base_model=base_model,
        recipe=recipe.settings(),
        tokenizer=repo_id if is_own or base_model is None else base_model,
        has_chat_template=tokenizer is None or tokenizer.chat_template is not None,
        adapter_config=adapter_config,
        summary=summary,
        report=read_report(report, recipe.settings()) if report is not None else None,
        dataset_name=dataset_name,
        license=license,
        tags=as_tags(tags),
    )
    files[CARD_NAME] = _card(folder, facts)
    check_contents(files, folder)
    logger.info(f"Uploading {', '.join(files)}. Not uploaded: {', '.join(left_out) or 'nothing'}.")
    return upload_files(
        files,
        repo_id,
        check_existing=functools.partial(_check_same_kind, facts=facts, config=read_json(folder / CONFIG_NAME)),
        replaces=(*WEIGHT_PATTERNS[kind], *(TOKENIZER_PATTERNS if _has_tokenizer(folder) else ())),
        private=private,
        revision=revision,
        create_pr=create_pr,
        token=token,
        commit_message=commit_message or f"Upload {kind} with hf-dparallel",
    )


def check_base_model(name: str | None, kind: str) -> str | None:
    """Returns the name of the base model if others will find it; `None` for a model of which it is not known.

    Raises:
        ValueError: if an adapter would be pushed that nobody else could use.
    """
    problem = None
    if not name:
        problem = "is not known"
    elif Path(name).exists() or is_local_path(name):
        problem = f"is {name!r}, a folder of this machine"
    else:
        try:
            validate_repo_id(name)
        except HFValidationError:
            problem = f"is {name!r}, which is no name of a repository"
    if problem is None:
        return name
    if kind == "model":
        logger.warning(f"The base model {problem}, and is not mentioned. `base_model=` names it.")
        return None
    raise ValueError(
        f"The base model {problem}, so that nobody else could use the adapter. Name it as it is called on the Hub: "
        "`base_model=` (`--base_model GSAI-ML/LLaDA-8B-Instruct`)."
    )


def _read_recipe(folder: Path, given: DiffusionGenerationConfig | None) -> DiffusionGenerationConfig:
    """The saved recipe with the settings that were given."""
    saved = folder / GENERATION_CONFIG_NAME
    recipe = DiffusionGenerationConfig.from_pretrained(folder) if saved.is_file() else DiffusionGenerationConfig()
    if given is not None and given.settings():
        recipe = recipe.updated(**given.settings())
    if recipe.commit_rule() is None:
        raise ValueError(
            f"`{saved}` "
            + ("has no commit rule" if saved.is_file() else "does not exist")
            + ", so that what is pushed would decode one token in each pass. Choose a rule: `generation_config="
            "DiffusionGenerationConfig(entropy_threshold=0.5)` (`--entropy_threshold 0.5`)."
        )
    return recipe


def _edited_files(
    adapter_config: dict[str, Any], summary: dict[str, Any], base_model: str | None, recipe: DiffusionGenerationConfig
) -> dict[str, Content]:
    """What is not uploaded as it lies in the folder, and what does not lie there."""
    edited: dict[str, Content] = {
        GENERATION_CONFIG_NAME: recipe.to_json_string(use_diff=True).encode(),
        "custom_generate/generate.py": _custom_generate(recipe, summary.get("shift_logits", False)).encode(),
        "custom_generate/requirements.txt": f"hf-dparallel>={__version__}\n".encode(),
    }
    if adapter_config:
        edited[ADAPTER_CONFIG_NAME] = _to_json({**adapter_config, "base_model_name_or_path": base_model})
    if summary:
        edited[SUMMARY_NAME] = _to_json({**summary, "base_model": base_model})
    return edited


def _custom_generate(recipe: DiffusionGenerationConfig, shift_logits: bool) -> str:
    source = _CUSTOM_GENERATE.read_text(encoding="utf-8")
    source = source.replace("RECIPE: dict = {}", f"RECIPE: dict = {recipe.settings()!r}")
    return source.replace("SHIFT_LOGITS = False", f"SHIFT_LOGITS = {bool(shift_logits)}")


def _has_tokenizer(folder: Path) -> bool:
    return (folder / "tokenizer_config.json").is_file()


def _tokenizer(
    folder: Path, kind: str, base_model: str | None, token: str | None
) -> tuple[PreTrainedTokenizerBase | None, bool]:
    """The tokenizer of the model, if it can be read, and whether it is in the folder and not that of the base."""
    own = AutoTokenizer.from_pretrained(folder) if _has_tokenizer(folder) else None
    if own is not None and kind == "model":
        return own, True
    base = _base_tokenizer(base_model, token)
    if own is None or (base is not None and _fingerprint(own) == _fingerprint(base)):
        return base, False
    return own, True


def _base_tokenizer(base_model: str | None, token: str | None) -> PreTrainedTokenizerBase | None:
    """The tokenizer of the base model, if it can be read from here."""
    if base_model is None:
        return None
    try:
        return AutoTokenizer.from_pretrained(base_model, token=token)
    except (OSError, ValueError):
        return None


def _fingerprint(tokenizer: PreTrainedTokenizerBase) -> tuple[Any, ...]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    vocabulary = backend.to_str() if backend is not None else tokenizer.get_vocab()
    return vocabulary, tokenizer.chat_template, tokenizer.special_tokens_map


def _card(folder: Path, facts: ModelFacts) -> Content:
    """The card in the folder if somebody wrote it, else a new one."""
    path = folder / CARD_NAME
    if path.is_file() and not is_draft(path.read_text(encoding="utf-8")):
        logger.warning(f"`{path}` is uploaded as it is. Delete it to have a card written.")
        return path
    return f"{make_model_card(facts)}\n".encode()


def _check_same_kind(
    existing: Sequence[str], read: Callable[[str], str], facts: ModelFacts, config: dict[str, Any]
) -> None:
    """Checks that a repository holds nothing, or what the new commit is a new version of."""
    pushed = _adapter_of(facts.base_model) if facts.kind == "adapter" else _model_of(config)
    weights = next((name for name in existing if name.endswith(WEIGHT_SUFFIXES)), None)
    if CONFIG_NAME in existing:
        held = _model_of(json.loads(read(CONFIG_NAME)))
    elif ADAPTER_CONFIG_NAME in existing:
        held = _adapter_of(json.loads(read(ADAPTER_CONFIG_NAME)).get("base_model_name_or_path"))
    else:
        held = pushed if weights is None else f"weights of something else ({weights})"
    if held != pushed:
        raise ValueError(
            f"`repo_id={facts.repo_id}` exists and holds {held}, and what is pushed is {pushed}. Choose another name, "
            "or delete that repository first."
        )


def _adapter_of(base_model: str | None) -> str:
    return f"an adapter of {base_model}"


def _model_of(config: dict[str, Any]) -> str:
    return f"a model of type {config.get('model_type')} ({', '.join(config.get('architectures') or ['no class'])})"


def _to_json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
