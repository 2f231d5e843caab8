# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Patches bitsandbytes' quantizer of transformers, which leaves the experts of a layer, one tensor, as they are.

It patches the quantizer that transformers looks up while a model is loaded, and the classes of modules with experts.
Can go with the first bitsandbytes that quantizes such tensors
(https://github.com/bitsandbytes-foundation/bitsandbytes/issues/1849).
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from bitsandbytes.functional import dequantize_4bit
from bitsandbytes.nn import Params4bit
from torch import nn
from transformers import PreTrainedModel
from transformers.integrations.bitsandbytes import Bnb4bitQuantize
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING
from transformers.quantizers.quantizer_bnb_4bit import Bnb4BitHfQuantizer
from transformers.quantizers.quantizers_utils import get_module_from_name, should_convert_module


@contextmanager
def quantized_experts() -> Iterator[None]:
    """Has transformers quantize a model that is loaded inside by [`ExpertsIn4BitQuantizer`]."""
    before = AUTO_QUANTIZER_MAPPING["bitsandbytes_4bit"]
    AUTO_QUANTIZER_MAPPING["bitsandbytes_4bit"] = ExpertsIn4BitQuantizer
    try:
        yield
    finally:
        AUTO_QUANTIZER_MAPPING["bitsandbytes_4bit"] = before


class ExpertsIn4BitQuantizer(Bnb4BitHfQuantizer):
    """The quantizer of transformers, for experts too: a pass dequantizes those of a layer when it comes to them."""

    def param_needs_quantization(self, model: PreTrainedModel, param_name: str, **kwargs) -> bool:
        """Returns whether a weight is stored in 4 bits."""
        if model.get_parameter_or_buffer(param_name).dim() == 3:
            return should_convert_module(param_name, self.modules_to_not_convert)
        return super().param_needs_quantization(model, param_name, **kwargs)

    def get_quantize_ops(self) -> Bnb4bitQuantize:
        """Returns what quantizes a weight as soon as it is read."""
        return _Quantize(self)

    def is_serializable(self) -> bool:
        """Returns `False`: in published files each expert has its own weights."""
        return False


class _Quantize(Bnb4bitQuantize):
    def convert(self, input_dict: dict[str, Any], model: Any = None, **kwargs) -> dict[str, torch.Tensor]:
        config = self.hf_quantizer.quantization_config
        experts = {}
        others = {}
        for name, tensors in input_dict.items():
            value = tensors[0] if isinstance(tensors, list) else tensors
            if value.dim() != 3:
                others[name] = value
                continue

            module, weight = get_module_from_name(model, name)
            module.__class__ = _dequantizing(module.__class__, weight)
            quantized = Params4bit(
                value,
                requires_grad=False,
                compress_statistics=config.bnb_4bit_use_double_quant,
                quant_type=config.bnb_4bit_quant_type,
            )
            # This is when bitsandbytes quantizes.
            experts[name] = quantized.to(value.device)

        return experts | super().convert(others, model=model, **kwargs)


@functools.cache
def _dequantizing(base: type[nn.Module], name: str) -> type[nn.Module]:
    """Returns a class whose modules read their weight of this name in the dtype that it had."""

    def read(self) -> torch.Tensor:
        weight = self._parameters[name]
        state = getattr(weight, "quant_state", None)
        return weight if state is None else dequantize_4bit(weight.data, state)

    return type(base.__name__, (base,), {name: property(read)})
