# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The model that is trained: loaded, checked and adapted."""

from typing import TYPE_CHECKING

from torch import nn
from transformers import AutoModelForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..generation import configuration
from ..models.adapters import check_not_repacked
from ..models.foreign import enable_diffusion_generation
from ..models.scoring import ScoringMixin
from .lora import add_adapter


if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel

logger = logging.get_logger(__name__)


def prepare_student(
    model: "str | PreTrainedModel | PeftModel",
    processing_class: PreTrainedTokenizerBase | None = None,
    peft_config: "PeftConfig | None" = None,
    trainable: bool = True,
) -> "PreTrainedModel | PeftModel":
    r"""
    Loads a model if it is given by name, checks that it can be trained, and adds an adapter if asked to.

    A model of another class than ours is given `generate`, see [`enable_diffusion_generation`].

    Args:
        model (`str` or [`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            The model.
        processing_class ([`~transformers.PreTrainedTokenizerBase`], *optional*):
            The tokenizer, which may know the mask token.
        peft_config ([`~peft.PeftConfig`], *optional*):
            The adapter to add, see [`add_adapter`].
        trainable (`bool`, *optional*, defaults to `True`):
            Whether the model must have something to train.

    Raises:
        ValueError: if the model is causal, its mask token is not known, a target module does not exist, or nothing is
            trainable.
    """
    if isinstance(model, str):
        model = AutoModelForMaskedLM.from_pretrained(model)
    _avoid_kernels_without_gradients(model)
    base = base_model(model)
    if not isinstance(base, ScoringMixin):
        enable_diffusion_generation(base, special_token_id("mask_token_id", base, processing_class))
    if peft_config is not None:
        model = add_adapter(model, peft_config)
    elif any(weight.requires_grad and weight.dtype.itemsize == 2 for weight in model.parameters()):
        logger.warning(
            "The weights that are trained are in half precision, which rounds most small updates away. Load the model "
            "with `dtype=torch.float32` and set `bf16=True`, or train an adapter."
        )
    if trainable and not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(
            "No parameter of the model requires a gradient, so there is nothing to train. Load the adapter with "
            "`PeftModel.from_pretrained(..., is_trainable=True)`, or pass `peft_config` to add a new one."
        )
    return model


def _avoid_kernels_without_gradients(model: nn.Module) -> None:
    """Keeps bitsandbytes from its 4-bit kernel for CPUs, which has no gradient and says so only in a warning."""
    check_not_repacked(model)
    for module in model.modules():
        if getattr(module, "support_avx512bf16_for_cpu", False) and module.weight.device.type == "cpu":
            module.support_avx512bf16_for_cpu = False


def base_model(model: "PreTrainedModel | PeftModel") -> PreTrainedModel:
    """The model of transformers under an adapter, if there is one."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def special_token_id(
    name: str, model: "PreTrainedModel | PeftModel", processing_class: PreTrainedTokenizerBase | None
) -> int:
    r"""
    The `mask_token_id` or `eos_token_id` (`name`) of the tokenizer; or else of the model's configuration.

    Raises:
        ValueError: if none of them has it.
    """
    base = base_model(model)
    token_id = configuration.special_token_id(
        name, processing_class, base.config, getattr(base, "generation_config", None)
    )
    if token_id is None:
        raise ValueError(
            f"`{name}` is needed, but neither `processing_class` nor the configuration of {type(base).__name__} has "
            f"one. Set `processing_class.{name.removesuffix('_id')}` or `model.config.{name}`."
        )
    # Generation may stop at several tokens; the first is the one that texts end with.
    return token_id[0] if isinstance(token_id, list) else token_id


__all__ = ["base_model", "prepare_student", "special_token_id"]
