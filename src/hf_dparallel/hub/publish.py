# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Publishing a distilled model or adapter: weights, recipe, tokenizer and card."""

import functools
import json
import os
import pprint
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo
from transformers.utils import ADAPTER_CONFIG_NAME, CONFIG_NAME, GENERATION_CONFIG_NAME, logging

from .._version import __version__
from .card import is_replaceable, make_model_card
from .facts import ModelFacts
from .files import (
    CALIBRATION_NAME,
    CARD_NAME,
    SUMMARY_NAME,
    TOKENIZER_PATTERNS,
    WEIGHT_PATTERNS,
    WEIGHT_SUFFIXES,
    Content,
    check_own_paths,
    kind_of,
    select_files,
)
from .upload import check_name, full_name, upload_files


logger = logging.get_logger(__name__)

_CUSTOM_GENERATE = Path(__file__).parent / "custom_generate" / "generate.py"
# Files of Trainer and trackers beside the model: they tell much of this machine, and nobody can use them.
_IGNORED = "training_args.bin\n*.pt\n*.pth\ntrainer_state.json\ncheckpoint-*/\nruns/\nwandb/\n.env\n"


def push_model_to_hub(
    folder: str | os.PathLike,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    token: str | None = None,
    commit_message: str | None = None,
    **facts: Any,
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
        private, revision, create_pr, token, commit_message:
            As in `create_repo` and [`~huggingface_hub.HfApi.create_commit`]. A branch is created if there is none.
        facts:
            `base_model`, `generation_config`, `report`, `example`, `dataset_name`, `license` and `tags`, as in
            [`ModelFacts.read`].

    Returns:
        [`~huggingface_hub.CommitInfo`]

    Raises:
        ValueError: before anything is uploaded: if the recipe has no commit rule, the base model is a local folder, a
            file tells a path of this machine, or the repository holds something else.
        OSError: if the folder holds no safetensors weights, or the Hub refuses.
    """
    kind = kind_of(Path(folder))
    known = ModelFacts.read(folder, full_name(repo_id, token), **facts)
    files = files_to_push(known)
    logger.info(f"Uploading {', '.join(files)}.")
    config = files[WEIGHT_PATTERNS[kind][0]]
    pushed = _describe(json.loads(config if isinstance(config, bytes) else config.read_bytes()))
    tokenizer = TOKENIZER_PATTERNS if known.has_tokenizer else ()
    return upload_files(
        files,
        known.repo_id,
        describe_other=functools.partial(_describe_other, pushed=pushed),
        replaces=[*WEIGHT_PATTERNS[kind], *tokenizer, CALIBRATION_NAME],
        private=private,
        revision=revision,
        create_pr=create_pr,
        token=token,
        commit_message=commit_message or f"Upload {kind} with hf-dparallel",
    )


def files_to_push(facts: ModelFacts) -> dict[str, Content]:
    """Returns what [`push_model_to_hub`] would upload, after all checks that need no network; raises the same errors.

    Args:
        facts ([`ModelFacts`]): the folder, the name of the repository, and what goes on the card.

    Returns:
        `dict[str, Path | bytes]`: by the name in the repository, the file here, or the content if it was made now.
    """
    check_name(facts.repo_id)
    kind = kind_of(facts.folder)
    facts.check_complete()
    edited = {GENERATION_CONFIG_NAME: facts.recipe.to_json_string().encode()}
    if kind == "adapter":
        edited[ADAPTER_CONFIG_NAME] = _to_json({**facts.adapter, "base_model_name_or_path": facts.base_model})
    if facts.summary:
        edited[SUMMARY_NAME] = _to_json({**facts.summary, "base_model": facts.base_model})
    files: dict[str, Content] = {**select_files(facts.folder, kind), **_companions(facts, facts.folder), **edited}
    if not facts.calibration:
        files.pop(CALIBRATION_NAME, None)
    check_own_paths(files, facts.folder)
    return files


def write_companions(facts: ModelFacts, *copies: Path) -> None:
    """Writes what belongs to a model on the Hub beside its weights and recipe, to its folder and to `copies` of it.

    A card that somebody has written stays. A `.gitignore` names the files that stay here, so that a plain upload of a
    folder is complete and clean.
    """
    for folder in {facts.folder, *copies}:
        for name, content in {**_companions(facts, folder), ".gitignore": _IGNORED.encode()}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)


def _companions(facts: ModelFacts, folder: Path) -> dict[str, bytes]:
    """Returns the code for models of other classes, and a card unless somebody wrote the folder's."""
    recipe = pprint.pformat(json.loads(facts.recipe.to_json_string()))
    shift = bool(facts.summary.get("shift_logits"))
    companions = {
        "custom_generate/generate.py": _CUSTOM_GENERATE.read_bytes(),
        "custom_generate/recipe.py": f"RECIPE = {recipe}\nSHIFT_LOGITS = {shift}\n".encode(),
        "custom_generate/requirements.txt": f"hf-dparallel>={__version__}\n".encode(),
    }
    own = folder / CARD_NAME
    if own.is_file() and not is_replaceable(own.read_text(encoding="utf-8")):
        logger.warning_once(f"`{own}` is kept as it is. Delete it to have a card written.")
        return companions
    return {**companions, CARD_NAME: f"{make_model_card(facts)}\n".encode()}


def _describe_other(existing: Sequence[str], read: Callable[[str], str], pushed: str) -> str | None:
    """Says what a repository holds, unless it is empty or holds an earlier version of the new commit."""
    config = next((name for name in (CONFIG_NAME, ADAPTER_CONFIG_NAME) if name in existing), None)
    weights = next((name for name in existing if name.endswith(WEIGHT_SUFFIXES)), None)
    if config is not None:
        held = _describe(json.loads(read(config)))
    else:
        held = pushed if weights is None else f"weights of something else ({weights})"
    return None if held == pushed else f"{held}, and what is pushed is {pushed}"


def _describe(config: dict[str, Any]) -> str:
    """Says what a configuration is of."""
    if "base_model_name_or_path" in config:
        return f"an adapter of {config['base_model_name_or_path']}"
    return f"a model of type {config.get('model_type')} ({', '.join(config.get('architectures') or ['no class'])})"


def _to_json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
