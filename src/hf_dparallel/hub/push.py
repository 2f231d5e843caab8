# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Publishes an adapter or a model: weights, recipe, tokenizer and card."""

import json
import os
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from transformers.utils import ADAPTER_CONFIG_NAME, GENERATION_CONFIG_NAME

from .._version import __version__
from ..generation.configuration import DiffusionGenerationConfig
from .card import CARD_NAME, SUMMARY_NAME, make_card, own_card, read_if_saved


_CUSTOM_GENERATE = Path(__file__).parent / "custom_generate" / "generate.py"
# All else in a folder stays there: optimizer states, training_args.bin, checkpoints, logs.
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
_ADAPTER = (ADAPTER_CONFIG_NAME, "adapter_model.safetensors")
_PUBLIC = (
    *(GENERATION_CONFIG_NAME, SUMMARY_NAME),
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja", "additional_chat_templates/*"),
    *(CARD_NAME, "LICENSE*", "NOTICE*", "*.png", "*.svg"),
)
# Of a student that was exported for an engine, with the code of the base model.
_EXPORTED = ("launch.sh", "dllm.yaml", "*.py")

Content = Path | bytes


def push_model_to_hub(
    folder: str | os.PathLike,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    token: str | None = None,
    **about: Any,
) -> CommitInfo:
    r"""
    Publishes an adapter or a model, with its decoding recipe and a card, in one commit.

    [`files_to_push`] returns the files and sends nothing. The folder is not changed. Weights of an earlier push that
    are not among the new ones are deleted.

    Args:
        folder (`str` or `os.PathLike`):
            What [`CertaintyForcingTrainer`] or `save_pretrained` has saved.
        repo_id (`str`):
            Name of the repository, by default one of yours. It is created if there is none.
        private, revision, token:
            As in `create_repo` and [`~huggingface_hub.HfApi.create_commit`]. A branch is created if there is none.
        about:
            `base_model`, `generation_config`, `report`, `dataset_name`, `license` and `tags`, as in [`files_to_push`].

    Raises:
        ValueError: before anything is uploaded: if there is no recipe, or the base model is a local folder.
        OSError: if the folder holds no safetensors weights, or the Hub refuses.
    """
    api = HfApi(token=token)
    if "/" not in repo_id:
        repo_id = f"{api.whoami()['name']}/{repo_id}"

    files = files_to_push(folder, repo_id, **about)
    api.create_repo(repo_id, private=private, exist_ok=True)
    if revision is not None:
        api.create_branch(repo_id, branch=revision, exist_ok=True)

    changes: list[Any] = [CommitOperationAdd(name, content) for name, content in files.items()]
    for name in sorted(api.list_repo_files(repo_id, revision=revision)):
        is_weight = "/" not in name and any(map(Path(name).match, _WEIGHTS))
        if is_weight and name not in files:
            changes.append(CommitOperationDelete(name))
    return api.create_commit(repo_id, changes, commit_message="Upload with hf-dparallel", revision=revision)


def files_to_push(folder: str | os.PathLike, repo_id: str, **about: Any) -> dict[str, Content]:
    """Returns what [`push_model_to_hub`] would upload: the path or the new content of each file, by its name there.

    Args:
        folder, repo_id:
            As in [`push_model_to_hub`].
        about:
            `base_model`, the name of the base model on the Hub, by default what the adapter says; `generation_config`,
            settings that take the place of the saved ones; `report`, `dataset_name`, `license` and `tags` as in
            [`make_card`].
    """
    folder = Path(folder)
    if not any(folder.glob("*.safetensors")):
        raise FileNotFoundError(
            f"`{folder}` holds no weights in safetensors. Give the folder of `trainer.save_model()` or "
            "`save_pretrained`."
        )

    names = [*_PUBLIC, "config.json", *_WEIGHTS]
    if (folder / ADAPTER_CONFIG_NAME).is_file():
        names = [*_PUBLIC, *_ADAPTER]
    if (folder / "launch.sh").is_file():
        names += _EXPORTED

    files: dict[str, Content] = {}
    for name in names:
        for path in filter(Path.is_file, folder.glob(name)):
            files[path.relative_to(folder).as_posix()] = path
    return dict(sorted(files.items())) | made_files(folder, repo_id, **about)


def made_files(
    folder: str | os.PathLike,
    repo_id: str,
    *,
    base_model: str | None = None,
    generation_config: DiffusionGenerationConfig | None = None,
    **about: Any,
) -> dict[str, bytes]:
    """Returns the files that are made for a push from those in the folder, see [`files_to_push`].

    They are the recipe, `custom_generate/`, the card unless somebody has edited it, and for an adapter its
    configuration with the name of the base model.
    """
    folder = Path(folder)
    recipe = DiffusionGenerationConfig()
    if (folder / GENERATION_CONFIG_NAME).is_file():
        recipe = DiffusionGenerationConfig.from_pretrained(folder)
    if generation_config is not None:
        recipe = recipe.updated(**generation_config.settings())
    if not recipe.settings():
        raise ValueError(
            f"`{folder}` has no recipe ({GENERATION_CONFIG_NAME}), and would decode one token in each pass. Choose a "
            "rule: `generation_config=DiffusionGenerationConfig(entropy_threshold=0.5)` (`--entropy_threshold 0.5`)."
        )

    shift_logits = bool(read_if_saved(folder / SUMMARY_NAME).get("shift_logits"))
    code = _CUSTOM_GENERATE.read_text(encoding="utf-8")
    code = code.replace("RECIPE: dict = {}", f"RECIPE: dict = {json.loads(recipe.to_json_string())!r}")
    code = code.replace("SHIFT_LOGITS: bool = False", f"SHIFT_LOGITS: bool = {shift_logits}")
    made = {
        GENERATION_CONFIG_NAME: recipe.to_json_string(),
        "custom_generate/generate.py": code,
        "custom_generate/requirements.txt": f"hf-dparallel>={__version__}\n",
    }

    adapter = read_if_saved(folder / ADAPTER_CONFIG_NAME)
    if adapter:
        base_model = check_base_model(base_model or adapter.get("base_model_name_or_path"))
        made[ADAPTER_CONFIG_NAME] = json.dumps({**adapter, "base_model_name_or_path": base_model}, indent=2)
    if own_card(folder) is None:
        made[CARD_NAME] = f"{make_card(folder, repo_id, recipe, base_model=base_model, **about)}\n"
    return {name: text.encode() for name, text in made.items()}


def check_base_model(name: str | None) -> str:
    """Returns the name of an adapter's base model. Raises a `ValueError` unless it is a name on the Hub."""
    if name is None or hub_name(name) is None:
        raise ValueError(
            f"`base_model` is {name!r}, a folder of this machine or no name of a repository (OWNER/NAME), so that "
            "nobody else could use the adapter. Name it as it is called on the Hub, where a base of yours has to be "
            "pushed first: `base_model=` (`--base_model GSAI-ML/LLaDA-8B-Instruct`)."
        )
    return name


def hub_name(name: str) -> str | None:
    """Returns a name if a repository on the Hub can have it; `None` for a folder of this machine.

    A name without an owner is one of the commands, "demo", that no repository has.
    """
    try:
        validate_repo_id(name)
    except HFValidationError:
        return None
    if "/" not in name or Path(name).exists():
        return None
    return name
