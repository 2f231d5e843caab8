# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""PEFT's activated LoRA with a mask in the place of its offsets. Imports PEFT."""

from typing import Any

import torch
from peft.tuners.lora import Linear, LoraLayer
from peft.tuners.lora.variants import ALoraLinearVariant
from torch import nn
from torch.nn.functional import linear

from .gated_pass import PASS


class MaskLoraVariant(ALoraLinearVariant):
    """Acts at the masks of the pass that a thread runs ([`~gated_pass.acting_at`]), and elsewhere as PEFT's own.

    PEFT's own gathers the tokens that an adapter acts on, and waits for the device.
    """

    @staticmethod
    def forward(
        module: Any, active_adapter: str, x: torch.Tensor, result: torch.Tensor, **kwargs: Any
    ) -> torch.Tensor:
        """Returns `result`, what the base layer makes of `x`, with what the adapter adds at masks."""
        if not PASS.is_gated:
            return ALoraLinearVariant.forward(module, active_adapter, x, result, **kwargs)
        if PASS.is_mask is None:
            return result

        # Without the overhead of calling modules.
        lora_a = module.lora_A[active_adapter].weight
        lora_b = module.lora_B[active_adapter]
        own = module.lora_dropout[active_adapter](x.to(lora_a.dtype))
        added = linear(linear(own, lora_a), lora_b.weight, lora_b.bias).to(result.dtype)

        # Converted once a pass.
        PASS.is_mask = PASS.is_mask.to(result)
        return torch.addcmul(result, added, PASS.is_mask, value=module.scaling[active_adapter])


class MaskLoraLinear(Linear):
    """A layer of PEFT that is about as fast as its base in passes without masks."""

    # The active adapters, if all act on masks only.
    of_masks: list[str] | None = None

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Overrides PEFT's own, for passes in which none of the active adapters acts."""
        # It runs in every layer, where each operation counts.
        if PASS.is_gated and PASS.is_mask is None and self.active_adapters == self.of_masks and not self.merged:
            return self.base_layer(x)
        return super().forward(x, *args, **kwargs)


def prepare_layers(model: nn.Module) -> bool:
    """Has the activated adapters of all layers act at masks, and returns whether an active one does."""
    is_found = False
    for layer in model.modules():
        if not isinstance(layer, LoraLayer) or layer.disable_adapters:
            continue
        if type(layer) is Linear:
            layer.__class__ = MaskLoraLinear
        acting = list(layer.active_adapters)
        layer.of_masks = acting if set(acting) <= layer.lora_variant.keys() else None
        for name, variant in layer.lora_variant.items():
            if type(variant) is ALoraLinearVariant:
                # It has no state, so that another thread may do the same.
                layer.lora_variant[name] = MaskLoraVariant()
            is_found |= isinstance(variant, ALoraLinearVariant) and name in layer.active_adapters
    return is_found
