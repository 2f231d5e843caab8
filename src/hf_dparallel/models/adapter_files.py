# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The files of an adapter, in a folder or on the Hub: its configuration, its weights, its recipe."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers.utils import (
    ADAPTER_CONFIG_NAME,
    ADAPTER_SAFE_WEIGHTS_NAME,
    ADAPTER_WEIGHTS_NAME,
    GENERATION_CONFIG_NAME,
    cached_file,
    has_file,
    logging,
)
from transformers.utils.hub import resolve_revision

from ..generation.configuration import DiffusionGenerationConfig
from ..generation.settings import SETTINGS


if TYPE_CHECKING:
    from peft import PeftConfig

logger = logging.get_logger(__name__)

_PEFT_PREFIX = "base_model.model."


class AdapterFiles:
    """The files of an adapter, all of the same commit; `download` has the arguments of [`cached_file`]."""

    def __init__(self, name: str, download: dict[str, Any]):
        self.name = str(name)
        resolving = {key: download.get(key) for key in ("revision", "token", "cache_dir")}
        offline = bool(download.get("local_files_only", False))
        self.download = {**download, "revision": resolve_revision(self.name, **resolving, local_files_only=offline)}

    def config(self) -> "PeftConfig":
        """Returns its configuration; an error says whether it is missing, may not be read, or is damaged."""
        from peft import PeftConfig

        if Path(self.name).is_dir() and not Path(self.name, ADAPTER_CONFIG_NAME).is_file():
            raise FileNotFoundError(
                f"The folder `{self.name}` holds no adapter: it has no {ADAPTER_CONFIG_NAME}. Give the `output_dir` "
                "of a training with `peft_config`, or the folder of `save_pretrained`."
            )
        # Says why, where PEFT only says that it cannot find it.
        cached_file(self.name, ADAPTER_CONFIG_NAME, **self.download)
        try:
            return PeftConfig.from_pretrained(self.name, **self.download)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(
                f"The {ADAPTER_CONFIG_NAME} of {self.name!r} is damaged, or not one of PEFT ({error!r}). Save the "
                "adapter again."
            ) from error

    def recipe(self, max_length: int | None) -> DiffusionGenerationConfig | None:
        """Returns the settings of decoding in its generation_config.json, if it has one.

        An adapter says how its answers are decoded. The special tokens are the model's, and the caller says what
        `generate` returns and compiles: such settings are left out, and so is a length above `max_length`.
        """
        if self._path(GENERATION_CONFIG_NAME) is None:
            return None
        try:
            recipe = DiffusionGenerationConfig.from_pretrained(self.name, **self.download)
        except (TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"The {GENERATION_CONFIG_NAME} of {self.name!r} is damaged ({error!r}).") from error
        if max_length is not None and (recipe.max_new_tokens or 0) > max_length:
            logger.warning(
                f"The recipe of the adapter {self.name!r} asks for max_new_tokens={recipe.max_new_tokens}, and the "
                f"model was trained on at most {max_length} tokens. That setting is left out."
            )
            recipe = recipe.updated(max_new_tokens=None)
        return recipe.updated(**{name: None for name in SETTINGS if not SETTINGS[name].changes_answer})

    def weights(self, allow_pickles: bool = False) -> dict[str, torch.Tensor]:
        """Returns its weights, on the CPU, without the prefix that PEFT gives to their names."""
        path = self._path(ADAPTER_SAFE_WEIGHTS_NAME)
        has_pickles = path is None and has_file(self.name, ADAPTER_WEIGHTS_NAME, **self.download)
        if path is None and not (has_pickles and allow_pickles):
            pickled = (
                f"Its {ADAPTER_WEIGHTS_NAME} is a pickle, which can run code when it is read, and is refused. If you "
                "trust it, pass `use_safetensors=False`, and save the adapter again."
            )
            raise OSError(
                f"The adapter {self.name!r} has no {ADAPTER_SAFE_WEIGHTS_NAME}. "
                + (pickled if has_pickles else "Is it complete?")
            )
        try:
            if path is not None:
                weights = load_file(path)
            else:
                weights = torch.load(self._path(ADAPTER_WEIGHTS_NAME), map_location="cpu", weights_only=True)
        except SafetensorError as error:
            raise OSError(
                f"`{path}` is damaged ({error}). Delete it, and download or save the adapter again."
            ) from error
        return {name.removeprefix(_PEFT_PREFIX): weight for name, weight in weights.items()}

    def _path(self, filename: str) -> str | None:
        return cached_file(self.name, filename, _raise_exceptions_for_missing_entries=False, **self.download)
