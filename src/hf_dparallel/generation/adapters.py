# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Which PEFT adapter of a model is active."""

from typing import Any

from transformers import PreTrainedModel


def has_adapter(model: PreTrainedModel) -> bool:
    """Returns whether PEFT adapters are loaded into the model."""
    return getattr(model, "_hf_peft_config_loaded", False)


def active_adapter(model: PreTrainedModel) -> str | None:
    """Returns PEFT's name of the active adapter, or `None`."""
    if not has_adapter(model):
        return None
    return next(iter(model.active_adapters()), None)


def set_adapter(model: PreTrainedModel, name: str | None) -> None:
    """Activates an adapter of a model, or disables all of them if `name` is `None`."""
    if not has_adapter(model):
        return

    from peft.tuners.tuners_utils import BaseTunerLayer

    layer = next(module for module in model.modules() if isinstance(module, BaseTunerLayer))
    if name is None and not layer.disable_adapters:
        model.disable_adapters()
    elif name is not None and (layer.disable_adapters or layer.active_adapters != [name]):
        model.enable_adapters()
        model.set_adapter(name)


def check_virtual_tokens(peft_config: Any) -> None:
    """Raises a `ValueError` for an adapter of PEFT that puts virtual tokens before the prompt."""
    if getattr(peft_config, "is_prompt_learning", False):
        raise ValueError(
            f"{type(peft_config).__name__} puts virtual tokens before the prompt, which decoding does not support. "
            "Use an adapter of the weights, such as LoRA."
        )
