# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The files of an adapter, in a folder or on the Hub: its configuration, the names of its weights, its recipe."""

import copy
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from transformers import PreTrainedModel
from transformers.utils import ADAPTER_CONFIG_NAME, GENERATION_CONFIG_NAME, cached_file, has_file, logging
from transformers.utils.hub import resolve_revision

from ..generation.configuration import DiffusionGenerationConfig
from ..generation.settings import SETTINGS
from .masked_diffusion import split_modules, to_own_names


if TYPE_CHECKING:
    from peft import PeftConfig

logger = logging.get_logger(__name__)

WEIGHTS_NAME = "adapter_model.safetensors"
_PICKLED_WEIGHTS_NAME = "adapter_model.bin"
_LORA_A = re.compile(r"\.lora_(?:embedding_)?A\b")
_PEFT_PREFIX = "base_model.model."


class AdapterFiles:
    r"""
    The files of an adapter, all of the same commit.

    Args:
        name (`str`):
            Name of the repository on the Hub, or a folder.
        download (`dict`):
            Arguments of a download: `revision`, `token`, `cache_dir`, `local_files_only`, ...
    """

    def __init__(self, name: str, download: dict[str, Any]):
        self.name = str(name)
        resolving = {key: download.get(key) for key in ("revision", "token", "cache_dir")}
        offline = bool(download.get("local_files_only", False))
        self.download = {**download, "revision": resolve_revision(self.name, **resolving, local_files_only=offline)}

    def config(self) -> "PeftConfig":
        """Returns its configuration.

        Raises:
            OSError: if there is no such adapter, or it may not be read.
            ValueError: if its configuration is none of PEFT.
        """
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

    def config_for(self, model: PreTrainedModel, config: "PeftConfig | None" = None) -> "PeftConfig":
        """Returns its configuration (or a copy of `config`) in the names of the modules of `model`.

        Raises:
            ValueError: if the configuration does not fit the weights.
        """
        config = copy.deepcopy(config or self.config())
        weight_shapes = self.weight_shapes()
        check_ranks(config, weight_shapes)
        translate_config(config, adapted_modules(model, config, weight_shapes))
        return config

    def recipe(self, max_length: int | None) -> DiffusionGenerationConfig | None:
        """Returns the settings of decoding in its generation_config.json, if it has one.

        An adapter says how its answers are decoded. The special tokens are the model's, and the caller says what
        `generate` returns and compiles: such settings are left out, and so is a length above `max_length`.

        Raises:
            ValueError: if a setting in it is out of range.
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

    def weight_shapes(self) -> dict[str, list[int]]:
        """Returns the names of its weights, and their shapes.

        Raises:
            OSError: if it has none, pickled ones only, or damaged ones.
        """
        path = self._path(WEIGHTS_NAME)
        if path is None:
            pickled = has_file(self.name, _PICKLED_WEIGHTS_NAME, **self.download)
            raise OSError(
                f"The adapter {self.name!r} has no {WEIGHTS_NAME}. "
                + (
                    f"Its {_PICKLED_WEIGHTS_NAME} is a pickle, which can run code when it is read, and is refused. If "
                    "you trust it, pass `use_safetensors=False`, and save the adapter again."
                    if pickled
                    else "Is it complete?"
                )
            )
        try:
            with safe_open(path, framework="pt") as weights:
                names = weights.keys()
                return {name: weights.get_slice(name).get_shape() for name in names}
        except SafetensorError as error:
            raise OSError(
                f"`{path}` is damaged ({error}). Delete it, and download or save the adapter again."
            ) from error

    def split_weights(self, model: PreTrainedModel, config: "PeftConfig") -> dict[str, torch.Tensor] | None:
        """Returns its weights, of which those of a LoRA of a module that is several in `model` are cut into theirs.

        `None` if it has no such module.

        Raises:
            ValueError: if the module has another size.
        """
        parts_of = _parts_of(model, config)
        if not any(_module_and_rest(name)[0].rpartition(".")[2] in parts_of for name in self.weight_shapes()):
            return None
        weights: dict[str, torch.Tensor] = {}
        for name, weight in load_file(str(self._path(WEIGHTS_NAME))).items():
            module, rest = _module_and_rest(name)
            parent, _, child = module.rpartition(".")
            parts = [f"{parent}.{part}" for part in parts_of.get(child, [child])]
            # All see the same input, and each makes some rows of the output.
            is_shared = len(parts) == 1 or rest.startswith(".lora_A")
            pieces = [weight] * len(parts) if is_shared else _cut(model, name, weight, parts)
            # Copies, for what shares memory cannot be saved.
            weights |= {f"{part}{rest}": piece.clone() for part, piece in zip(parts, pieces, strict=True)}
        return weights

    def _path(self, filename: str) -> str | None:
        return cached_file(self.name, filename, _raise_exceptions_for_missing_entries=False, **self.download)


def _parts_of(model: PreTrainedModel, config: "PeftConfig") -> dict[str, list[str]]:
    """By the name of a published module, the names of the modules of `model` that a LoRA of it is cut into."""
    return split_modules(model) if config.peft_type == "LORA" else {}


def _module_and_rest(weight: str) -> tuple[str, str]:
    module, marker, rest = weight.partition(".lora_")
    return module, marker + rest


def _cut(model: PreTrainedModel, name: str, weight: torch.Tensor, modules: list[str]) -> tuple[torch.Tensor, ...]:
    names = to_own_names(model, [f"{module.removeprefix(_PEFT_PREFIX)}." for module in modules]).values()
    sizes = [model.get_submodule(own_name[:-1]).out_features for own_name in names]
    if len(weight) != sum(sizes):  # type: ignore[arg-type]
        raise ValueError(
            f"{name!r} has {len(weight)} rows, and the modules that it is for have {sizes} outputs. Was the adapter "
            "trained on a model of another size?"
        )
    return weight.split(sizes)


def adapted_modules(model: PreTrainedModel, config: "PeftConfig", weight_names: Iterable[str]) -> dict[str, list[str]]:
    """Returns the modules that an adapter has weights for: the names in `model` of each name in its file.

    They differ where the adapter was trained with the published code of LLaDA, which names its modules otherwise, or
    of LLaDA2, which has one module for several.
    """
    from peft.mapping import PEFT_TYPE_TO_PREFIX_MAPPING

    marker = "." + PEFT_TYPE_TO_PREFIX_MAPPING.get(config.peft_type, "lora_")
    weights = (weight.removeprefix(_PEFT_PREFIX).partition(marker) for weight in weight_names)
    # With a dot at the end, as in the name of a weight.
    published = {f"{module}.": None for module, found, _ in weights if found}
    parts_of, modules = _parts_of(model, config), {}
    for name, own_name in to_own_names(model, published).items():
        parent, _, child = own_name[:-1].rpartition(".")
        modules[name[:-1]] = [f"{parent}.{part}".lstrip(".") for part in parts_of.get(child, [child])]
    return modules


def check_ranks(config: "PeftConfig", weight_shapes: dict[str, list[int]]) -> None:
    """Compares the ranks of a LoRA configuration with its weights, before PEFT takes memory for whatever it says.

    Ranks of modules that have no weights are lowered, in place, to one that the file has: the adapter is refused for
    such modules anyway.

    Raises:
        ValueError: if they differ.
    """
    from peft import PeftType
    from peft.utils.other import get_pattern_key

    ranks = {_LORA_A.split(weight)[0]: shape[0] for weight, shape in weight_shapes.items() if _LORA_A.search(weight)}
    if config.peft_type != PeftType.LORA or not ranks:
        return
    pattern = config.rank_pattern or {}
    for weight, rank in ranks.items():
        module = weight.removeprefix(_PEFT_PREFIX)
        expected = pattern.get(get_pattern_key(pattern.keys(), module), config.r)
        if expected != rank:
            raise ValueError(
                f"The adapter_config.json says that the rank of {module} is {expected}, and its weights have rank "
                f"{rank}. Save the adapter again."
            )
    largest = max(ranks.values())
    config.r = min(config.r, largest)
    config.rank_pattern = {module: min(rank, largest) for module, rank in pattern.items()}


def translate_config(config: "PeftConfig", modules: dict[str, list[str]]) -> None:
    """Rewrites, in place, the module names of a configuration whose weights are under other names than the model's.

    The names are those of the modules that have weights: PEFT is content if any name matches, so that the lists of
    published adapters contain names that matched nothing where they were trained, but would match here.
    """
    from peft.utils.other import get_pattern_key

    if all([published] == ours for published, ours in modules.items()):
        return
    published_of = {name: published for published, ours in modules.items() for name in ours}
    config.target_modules = set(published_of)
    config.layers_to_transform = config.layers_pattern = config.exclude_modules = None
    for setting in ("rank_pattern", "alpha_pattern"):
        pattern = getattr(config, setting, None) or {}
        keys = {ours: get_pattern_key(pattern.keys(), published) for ours, published in published_of.items()}
        setattr(config, setting, {ours: pattern[key] for ours, key in keys.items() if key in pattern})
