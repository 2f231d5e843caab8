# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Adapters for masked diffusion language models, with a check that every target module exists."""

import copy
import re
from typing import TYPE_CHECKING

from torch import nn
from transformers import PreTrainedModel
from transformers.utils import logging

from ..models.base import MaskedDiffusionModel


if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel


logger = logging.get_logger(__name__)

_DEFAULT_TARGET_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_PUBLISHED_LLADA_NAMES = {"attn_out": "o_proj", "ff_proj": "gate_proj", "ff_out": "down_proj"}


def add_adapter(model: PreTrainedModel, peft_config: "PeftConfig") -> "PeftModel":
    r"""
    Wraps `model` with a new adapter; the weights of the model itself are frozen.

    Two settings of `peft_config` (which is not changed) are filled in. `target_modules=None` becomes all linear layers
    of the attention and of dense MLPs (experts and routers stay frozen): by name for the models of this package,
    `"all-linear"` for other classes. `task_type` becomes `None`, because PEFT has no type for masked language models
    and those it has change how `generate` is called.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The model to adapt.
        peft_config ([`~peft.PeftConfig`]):
            The adapter, e.g. a [`~peft.LoraConfig`].

    Returns:
        [`~peft.PeftModel`]

    Raises:
        TypeError: if `peft_config` is not a [`~peft.PeftConfig`].
        ValueError: if the model has an adapter already, a target module does not exist, or the method is prompt
            learning.
    """
    from peft import PeftConfig, PeftModel, get_peft_model

    if not isinstance(peft_config, PeftConfig):
        raise TypeError(
            f"`peft_config` must be a `peft.PeftConfig` such as `peft.LoraConfig`, got {type(peft_config).__name__}."
        )
    if isinstance(model, PeftModel):
        raise ValueError(
            "`peft_config` was passed with a model that has an adapter already. Pass `peft_config=None` to train that "
            "adapter, or `model.merge_and_unload()` to add a new one on top of it."
        )
    if peft_config.is_prompt_learning:
        raise ValueError(
            f"`peft_config` is a {type(peft_config).__name__}: prompt learning puts virtual tokens before the prompt, "
            "which decoding knows nothing of. Use an adapter of the weights, such as `LoraConfig`."
        )
    peft_config = copy.deepcopy(peft_config)
    if peft_config.task_type is not None:
        logger.warning(f"`task_type={peft_config.task_type}` of `peft_config` is replaced by `None`.")
        peft_config.task_type = None
    # Not every method has target modules.
    if hasattr(peft_config, "target_modules"):
        if peft_config.target_modules is None:
            peft_config.target_modules = default_target_modules(model)
        check_target_modules(model, peft_config.target_modules)
    return get_peft_model(model, peft_config)


def default_target_modules(model: PreTrainedModel) -> list[str] | str:
    """Names of the linear layers that an adapter changes unless it is told otherwise."""
    names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    by_name = [name for name in _DEFAULT_TARGET_MODULES if name in names]
    return by_name if isinstance(model, MaskedDiffusionModel) else "all-linear"


def check_target_modules(model: nn.Module, target_modules: list[str] | set[str] | str) -> None:
    """Checks that every name (or the regular expression) in `target_modules` matches a module of `model`.

    PEFT is content if any name matches, so one that is misspelt, or named as in another architecture, would silently
    get no adapter.

    Raises:
        ValueError: with the names that match nothing, and those of the linear layers that exist.
    """
    if target_modules == "all-linear":
        return
    names = [name for name, _ in model.named_modules()]
    if isinstance(target_modules, str):
        unmatched = [] if any(re.fullmatch(target_modules, name) for name in names) else [target_modules]
    else:
        known = {".".join(parts[start:]) for parts in (n.split(".") for n in names) for start in range(len(parts))}
        unmatched = sorted(set(target_modules) - known)
    if unmatched:
        raise ValueError(_unmatched_message(model, unmatched))


def _unmatched_message(model: nn.Module, unmatched: list[str]) -> str:
    linear = sorted({n.rpartition(".")[2] for n, module in model.named_modules() if isinstance(module, nn.Linear)})
    message = (
        f"`target_modules` must name modules of {type(model).__name__}, but {unmatched} match none. Its linear layers "
        f"are {linear}; or leave `target_modules=None` to adapt all of the attention and of dense MLPs."
    )
    renamed = {name: _PUBLISHED_LLADA_NAMES[name] for name in unmatched if name in _PUBLISHED_LLADA_NAMES}
    if renamed and isinstance(model, MaskedDiffusionModel):
        hints = ", ".join(f"`{published}` is `{ours}`" for published, ours in renamed.items())
        message += f" In the names of transformers, the published {hints}."
    return message


__all__ = ["add_adapter", "check_target_modules", "default_target_modules"]
