# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Adapters that act on mask tokens only: activated LoRAs of PEFT, which are told where the masks of a pass are."""

from typing import Any

from torch import nn


def acts_on_masks(peft_config: Any) -> bool:
    """Returns whether an adapter acts on mask tokens only, by its configuration."""
    return bool(getattr(peft_config, "alora_invocation_tokens", None))


def gate_adapters(model: nn.Module) -> bool:
    """Has adapters that act on masks obey [`~gated_pass.acting_at`], and returns whether an active one does."""
    # A model without adapters needs no PEFT.
    if not any(vars(layer).get("lora_variant") for layer in model.modules()):
        return False
    from .mask_lora import prepare_layers

    return prepare_layers(model)
