# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Adapters that act on mask tokens only: PEFT's activated LoRA with a gate in the place of its offsets."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear


class MaskGate:
    """The places of a forward pass at which the activated adapters of a model act: nowhere without `value`."""

    value: Any = None

    def __init__(self) -> None:
        # The attributes of layers, and a forward that gives what PEFT's gives, which decides much anew in each call.
        self.short_forwards: list[tuple[dict[str, Any], Callable[..., torch.Tensor]]] = []

    @contextmanager
    def on(self, is_mask: torch.BoolTensor) -> Iterator[None]:
        """Has the adapters act at these places of the forward passes inside, `(rows, length)`."""
        self.value = is_mask[..., None]
        for attributes, forward in self.short_forwards:
            attributes["forward"] = forward
        try:
            yield
        finally:
            self.value = None
            for attributes, _ in self.short_forwards:
                del attributes["forward"]

    def add(self, result: torch.Tensor, delta: torch.Tensor, scaling: float) -> torch.Tensor:
        """Returns the output of a layer with what its adapter adds at the places of the gate."""
        if self.value.dtype != result.dtype:
            self.value = self.value.to(result.dtype)
        return torch.addcmul(result, delta, self.value, value=scaling)


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
            if module.mask_gate.value is None:
                return result
            x = module.lora_dropout[active_adapter](x)
            delta = module.lora_B[active_adapter](module.lora_A[active_adapter](x)).to(result.dtype)
            return module.mask_gate.add(result, delta, module.scaling[active_adapter])

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
    if is_found:
        gate.short_forwards = [(vars(layer), f) for layer in layers if (f := _short_forward(layer, gate))]
    return gate if is_found else None


def _short_forward(layer: Any, gate: MaskGate) -> Callable[..., torch.Tensor] | None:
    """Returns the forward of a layer with one adapter on masks over a plain linear layer, `None` for another layer."""
    names, base = layer.active_adapters, layer.base_layer
    is_plain = type(base) is nn.Linear and len(names) == 1 and names[0] in layer.lora_variant
    if not is_plain or layer.disable_adapters or layer.merged or "forward" in vars(layer):
        return None
    lora_a, lora_b, scaling = layer.lora_A[names[0]], layer.lora_B[names[0]], layer.scaling[names[0]]
    dropout = layer.lora_dropout[names[0]]
    if lora_a.weight.dtype != base.weight.dtype or (layer.training and not isinstance(dropout, nn.Identity)):
        return None

    def forward(x: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        if kwargs:
            # Adapters by row, for example.
            return type(layer).forward(layer, x, **kwargs)
        delta = linear(linear(x, lora_a.weight), lora_b.weight)
        return gate.add(linear(x, base.weight, base.bias), delta, scaling)

    return forward
