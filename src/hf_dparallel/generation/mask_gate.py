# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Adapters that act on mask tokens only: PEFT's activated LoRA with a gate in the place of its offsets."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import nn


class MaskGate:
    """The places of a forward pass at which the activated adapters of a model act: nowhere without `value`."""

    value: torch.Tensor | None = None

    @contextmanager
    def on(self, is_mask: torch.BoolTensor) -> Iterator[None]:
        """Has the adapters act at these places of the forward passes inside, `(rows, length)`."""
        self.value = is_mask[..., None]
        try:
            yield
        finally:
            self.value = None


def acts_on_masks(peft_config: Any) -> bool:
    """Returns whether an adapter acts on mask tokens only, by its configuration."""
    return bool(getattr(peft_config, "alora_invocation_tokens", None))


@cache
def _gated_lora() -> Any:
    """Returns the variant of LoRA that a gate switches, made once, because PEFT is imported when it is used."""
    from peft.tuners.lora.variants import ALoraLinearVariant

    class GatedLora(ALoraLinearVariant):
        @staticmethod
        def forward(module: Any, active_adapter: str, x: torch.Tensor, result: torch.Tensor, **kwargs) -> torch.Tensor:
            gate = module.mask_gate.value
            if gate is None:
                return result
            x = module.lora_dropout[active_adapter](x)
            delta = module.lora_B[active_adapter](module.lora_A[active_adapter](x)).to(result.dtype)
            return torch.addcmul(result, delta, gate.to(result.dtype), value=module.scaling[active_adapter])

    return GatedLora


def gate_adapters(model: nn.Module) -> MaskGate | None:
    """Gives the activated adapters of a model one gate, and returns it; `None` if there are no such adapters.

    In PEFT's own activated LoRA each layer gathers the tokens that the adapter acts on, and waits for the device.
    """
    layers = [layer for layer in model.modules() if vars(layer).get("lora_variant")]
    if not layers:
        return None
    from peft.tuners.lora.variants import ALoraLinearVariant

    gates = [layer.mask_gate for layer in layers if hasattr(layer, "mask_gate")]
    gate, is_found = gates[0] if gates else MaskGate(), False
    for layer in layers:
        for name, variant in layer.lora_variant.items():
            if isinstance(variant, ALoraLinearVariant):
                layer.lora_variant[name], layer.mask_gate, is_found = _gated_lora()(), gate, True
    return gate if is_found else None
