# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Adapters that act on mask tokens only: PEFT's activated LoRA with a gate in the place of its offsets."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear


class MaskGate:
    """Has the activated adapters of some layers act at the masks of a forward pass.

    Outside of [`on`] these adapters do nothing. PEFT's own forward would decide much anew in each call, gather the
    tokens that an adapter acts on, and wait for the device.
    """

    def __init__(self, layers: list[Any]):
        self._is_mask: torch.Tensor | None = None
        self._forwards = [(vars(layer), self._make_forward(layer)) for layer in layers]

    @contextmanager
    def on(self, is_mask: torch.BoolTensor | None) -> Iterator[None]:
        """Has the adapters act at these places of the forward passes inside, `(rows, length)`; `None` for nowhere."""
        self._is_mask = None if is_mask is None else is_mask[..., None]
        for attributes, forward in self._forwards:
            attributes["forward"] = forward
        try:
            yield
        finally:
            for attributes, _ in self._forwards:
                del attributes["forward"]

    def _make_forward(self, layer: Any) -> Callable[..., torch.Tensor]:
        names = [name for name in layer.active_adapters if name in layer.lora_A]
        adapters = [(layer.lora_A[n], layer.lora_B[n], layer.lora_dropout[n], layer.scaling[n]) for n in names]

        def forward(x: torch.Tensor, alora_offsets: Any = None) -> torch.Tensor:
            result = layer.base_layer(x)
            if self._is_mask is None:
                return result
            self._is_mask = self._is_mask.to(result)
            for lora_a, lora_b, dropout, scaling in adapters:
                # Without the overhead of calling modules.
                own = dropout(x.to(lora_a.weight.dtype))
                delta = linear(linear(own, lora_a.weight), lora_b.weight)
                result = torch.addcmul(result, delta.to(result.dtype), self._is_mask, value=scaling)
            return result

        return forward


def acts_on_masks(peft_config: Any) -> bool:
    """Returns whether an adapter acts on mask tokens only, by its configuration."""
    return bool(getattr(peft_config, "alora_invocation_tokens", None))


def gate_adapters(model: nn.Module) -> MaskGate | None:
    """Returns a gate for the active adapters of a model that act on masks only; `None` if there are none."""
    layers = [layer for layer in model.modules() if vars(layer).get("lora_variant") and _is_gated(layer)]
    return MaskGate(layers) if layers else None


def _is_gated(layer: Any) -> bool:
    from peft.tuners.lora.variants import ALoraLinearVariant

    variants = [layer.lora_variant.get(name) for name in layer.active_adapters if name in layer.lora_A]
    is_plain = layer.disable_adapters or layer.merged or "forward" in vars(layer)
    return bool(variants) and not is_plain and all(isinstance(each, ALoraLinearVariant) for each in variants)
