# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The files of an adapter, in a folder or on the Hub: a checked configuration, weights and a recipe."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
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

from hf_dparallel_rules.settings import SETTINGS

from ..generation.configuration import DiffusionGenerationConfig


if TYPE_CHECKING:
    from peft import PeftConfig

logger = logging.get_logger(__name__)

# A plain module name, optionally starting with "^" (PEFT adds it to disambiguate).
_NAME = re.compile(r"\^?[\w.-]+")
_MOST_NAMES = 500
# `init_lora_weights` values that do not modify the base weights.
HARMLESS_STARTS = (True, False, "gaussian", "eva", "orthogonal", "mica")
# Settings that change layers or weights, import code, or need arguments that decoding does not pass.
_REFUSED = ("layer_replication", "megatron_config", "kasa_config", "alora_invocation_tokens")
# D2F's adapters were trained with an attention that no model here has, and nothing in their files says so.
_OF_ANOTHER_ATTENTION = ("D2F_LLaDA", "D2F_Dream")
_NAMING = ("rank_pattern", "alpha_pattern", "modules_to_save", "target_parameters", "feedforward_modules")


class AdapterFiles:
    """The files of an adapter, all of the same commit; `download` has the arguments of [`cached_file`]."""

    def __init__(self, name: str, download: dict[str, Any]):
        self.name = str(name)
        if Path(self.name).name.startswith(_OF_ANOTHER_ATTENTION):
            raise ValueError(
                f"The adapter {self.name!r} must be decoded with causal attention across the prompt and blocks of the "
                "answer, as D2F trained it, and this model attends to everything. Load another adapter."
            )
        resolving = {key: download.get(key) for key in ("revision", "token", "cache_dir")}
        offline = bool(download.get("local_files_only", False))
        self.download = {**download, "revision": resolve_revision(self.name, **resolving, local_files_only=offline)}

    def config(self) -> "PeftConfig":
        """Returns the configuration; an error says whether it is missing, may not be read, or is damaged."""
        from peft import PeftConfig

        if Path(self.name).is_dir() and not Path(self.name, ADAPTER_CONFIG_NAME).is_file():
            raise FileNotFoundError(
                f"The folder `{self.name}` holds no adapter: it has no {ADAPTER_CONFIG_NAME}. Give the `output_dir` "
                "of training with `peft_config`, or the folder of `save_pretrained`."
            )
        # Raises with the reason; PEFT only says "not found".
        cached_file(self.name, ADAPTER_CONFIG_NAME, **self.download)
        try:
            return PeftConfig.from_pretrained(self.name, **self.download)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(
                f"{ADAPTER_CONFIG_NAME} of {self.name!r} is damaged, or not one of PEFT ({error!r}). Save it again."
            ) from error

    def recipe(self, max_length: int | None) -> DiffusionGenerationConfig | None:
        """Returns the decoding settings in generation_config.json, if there is one.

        Leaves out the special tokens, which are the model's; what `generate` returns and compiles, which the caller
        decides; and a length above `max_length`.
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
        """Returns the weights, on the CPU, under PEFT's names."""
        path = self._path(ADAPTER_SAFE_WEIGHTS_NAME)
        if path is not None:
            try:
                return load_file(path)
            except SafetensorError as error:
                raise OSError(f"`{path}` is damaged ({error}). Delete it, and download or save it again.") from error
        remedy = "Is it complete?"
        if has_file(self.name, ADAPTER_WEIGHTS_NAME, **self.download):
            if allow_pickles:
                return torch.load(self._path(ADAPTER_WEIGHTS_NAME), map_location="cpu", weights_only=True)
            remedy = (
                f"Its {ADAPTER_WEIGHTS_NAME} is a pickle, which can run code when it is read, and is refused. If you "
                "trust it, pass `use_safetensors=False`, and save the adapter again."
            )
        raise OSError(f"The adapter {self.name!r} has no {ADAPTER_SAFE_WEIGHTS_NAME}. {remedy}")

    def _path(self, filename: str) -> str | None:
        return cached_file(self.name, filename, _raise_exceptions_for_missing_entries=False, **self.download)


def are_names(value: Any) -> bool:
    """Returns whether a setting has only plain module names, and at most `_MOST_NAMES` of them."""
    names = [value] if isinstance(value, str | int) else list(value or ())
    return len(names) <= _MOST_NAMES and all(_NAME.fullmatch(str(name)) for name in names)


def config_problems(config: "PeftConfig") -> Iterator[str]:
    """Yields problems of a configuration that keep an adapter from loading beside others, or in time."""
    for name in _REFUSED:
        if getattr(config, name, None):
            yield f"`{name}` is not supported"
    for name in _NAMING:
        if not are_names(getattr(config, name, None)):
            yield f"`{name}` must have at most {_MOST_NAMES} names of modules, which are no regular expressions"
    way = getattr(config, "init_lora_weights", True)
    if way not in HARMLESS_STARTS:
        yield (
            f"with `init_lora_weights={way!r}` PEFT changes the weights of the model, for other adapters, "
            "too; convert it with `save_pretrained(..., path_initial_model_for_weight_conversion=...)`"
        )


def unfit_for_weights(model: nn.Module, config: "PeftConfig", weights: Mapping[str, torch.Tensor]) -> Iterator[str]:
    """Yields settings for which PEFT would allocate weights that the file lacks."""
    largest = max((size for weight in weights.values() for size in weight.shape), default=0)
    rank = max([config.r, *(config.rank_pattern or {}).values()]) if config.peft_type == "LORA" else 0
    if rank > largest:
        yield f"the rank {rank} is larger than all of its weights"
    saved = tuple(getattr(config, "modules_to_save", None) or ())
    for path, module in model.named_modules():
        if path.endswith(saved):
            held = sum(weight.numel() for name, weight in weights.items() if name.startswith(f"{path}."))
            own, saved_weight = getattr(module, "original_module", module), weights.get(f"{path}.weight")
            rows = 0 if saved_weight is None else len(saved_weight)
            if rows and rows != len(own.weight):
                yield (
                    f"it has {rows} rows of {path!r}, and the model {len(own.weight)}. Load the model by its own "
                    f"name, then call `model.resize_token_embeddings({rows})` and `model.load_adapter`"
                )
            elif held < sum(map(torch.numel, own.parameters())):
                yield f"`modules_to_save` names {path!r}, which lacks weights in the file"
    tokens = getattr(config, "trainable_token_indices", None) or ()
    count = max(map(len, tokens.values()), default=0) if isinstance(tokens, dict) else len(tokens)
    if count > sum(len(weight) for name, weight in weights.items() if name.endswith("trainable_tokens_delta")):
        yield f"`trainable_token_indices` names {count} tokens, which lack weights in the file"
