# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The model that is trained: loaded, checked and adapted."""

import copy
import re
from typing import TYPE_CHECKING

from torch import nn
from transformers import AutoModelForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..generation.adapters import check_virtual_tokens, has_adapter
from ..generation.configuration import special_token_id
from ..models.adapters import check_start
from ..models.foreign import enable_diffusion_generation
from ..models.scoring import ScoringMixin


if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel

logger = logging.get_logger(__name__)


def prepare_student(
    model: "str | PreTrainedModel | PeftModel",
    processing_class: PreTrainedTokenizerBase | None = None,
    peft_config: "PeftConfig | None" = None,
    trainable: bool = True,
) -> "PreTrainedModel | PeftModel":
    """Loads a model given by name, checks that it can be trained, and adds an adapter for `peft_config`.

    Adds `generate` to models of other classes ([`enable_diffusion_generation`]). Raises a `ValueError` if the model is
    causal, its mask token is not known, a target module does not exist, or nothing is trainable.
    """
    if isinstance(model, str):
        model = AutoModelForMaskedLM.from_pretrained(model)

    base = base_model(model)
    if not isinstance(base, ScoringMixin):
        mask_token_id = special_token_id("mask_token_id", base.config.get_text_config(), processing_class)
        enable_diffusion_generation(base, mask_token_id)
    if peft_config is not None:
        model = add_adapter(model, base.prepare_adapter(peft_config))
    else:
        base.check_student(model)

    if model is not base and model.active_adapters[0] != "default":
        # PEFT would save it in a sub-folder of its name, where nothing looks for it.
        raise ValueError(f"The adapter to train must be named 'default', got {model.active_adapters[0]!r}.")
    if trainable and not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(
            "No parameter of the model requires a gradient, so there is nothing to train. Load the adapter with "
            "`is_trainable=True`, or pass `peft_config` with a model that has none."
        )
    return model


def base_model(model: "PreTrainedModel | PeftModel") -> PreTrainedModel:
    """Returns the base model of a `PeftModel`, and other models as they are."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def training_token_id(
    name: str, model: "PreTrainedModel | PeftModel", processing_class: PreTrainedTokenizerBase | None
) -> int:
    """Returns the `mask_token_id` that decoding uses, or the `eos_token_id`: that of the tokenizer, as in Trainer."""
    base = base_model(model)
    sources = [*base.recipes(), base.config.get_text_config(), processing_class]
    if name == "eos_token_id":
        sources.reverse()

    token_id = special_token_id(name, *sources)
    if token_id is None:
        raise ValueError(
            f"`{name}` is needed, but neither `processing_class` nor the configuration of {type(base).__name__} has "
            f"one. Set `processing_class.{name.removesuffix('_id')}` or `model.config.{name}`."
        )
    # Generation may stop at several tokens; the first is the one that texts end with.
    return token_id[0] if isinstance(token_id, list) else token_id


def add_adapter(model: PreTrainedModel, peft_config: "PeftConfig") -> "PeftModel":
    """Wraps `model` with a new adapter, by a copy of `peft_config` in which two settings are filled in.

    `target_modules=None` becomes all linear layers of the attention and of dense MLPs (experts and routers stay
    frozen), `"all-linear"` for other classes. `task_type` becomes `None`, because PEFT has no type for masked language
    models and its other types change how `generate` is called.
    """
    from peft import PeftModel, get_peft_model

    if isinstance(model, PeftModel) or has_adapter(model):
        raise ValueError(
            "`peft_config` was passed with a model that has an adapter already. Pass `peft_config=None` to train that "
            "adapter (loaded with `is_trainable=True`); or, to add one on top of it, save the model of "
            "`model.merge_and_unload()`, and load that folder."
        )
    check_virtual_tokens(peft_config)
    check_start(peft_config)
    if not model.config.name_or_path:
        logger.warning(
            "The model has no name, as after `merge_and_unload`, so the adapter will not say what it belongs to. Save "
            "the model, and load that folder."
        )

    peft_config = copy.deepcopy(peft_config)
    # Not every method has this setting.
    bias = getattr(peft_config, "bias", "none")
    if bias != "none":
        raise ValueError(f"`bias={bias!r}` of `peft_config` would change the model without the adapter. Leave it out.")

    if peft_config.task_type is not None:
        logger.warning(f"`task_type={peft_config.task_type}` of `peft_config` is replaced by `None`.")
        peft_config.task_type = None

    if hasattr(peft_config, "target_modules"):
        targets = peft_config.target_modules or getattr(model, "target_modules", "all-linear")
        if isinstance(targets, str) and re.fullmatch(r"[\w.]+", targets):
            # A name as text PEFT would read as a pattern of whole paths.
            targets = [targets]
        peft_config.target_modules = targets
        _check_target_modules(model, targets)
    return get_peft_model(model, peft_config)


def _check_target_modules(model: nn.Module, targets: list[str] | set[str] | str) -> None:
    """Raises a `ValueError` if one of several names matches no module: PEFT is content if any does."""
    if isinstance(targets, str):
        return

    paths = [f".{path}" for path, _ in model.named_modules()]
    unmatched = [name for name in sorted(targets) if not any(path.endswith(f".{name}") for path in paths)]
    if unmatched:
        raise ValueError(
            f"`target_modules` must name modules of {type(model).__name__}, but {unmatched} match none. Leave "
            "`target_modules=None` to adapt all linear layers of the attention and of dense MLPs."
        )
