# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Faster linear layers on CPUs: oneDNN multiplies with weights that are packed once."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary


# The cache of a processor holds a smaller model, and memory may not hold the copies of a larger one.
_FEWEST_WEIGHTS = 10**7
_MOST_BYTES = 4 * 2**30
# The expected rows of a product. Any other number of rows gives the same results.
_ROWS = 32
# By weight, as long as it exists: its state and sums when it was packed, and the packed copy.
_PACKED = WeakTensorKeyDictionary()


def packed_products(model: nn.Module) -> AbstractContextManager:
    """Returns a context in which the linear layers of a large model on a CPU use packed copies of their weights.

    Make one for each decoding, and enter it for each pass. The copies take as much memory as the weights, and exist as
    long. `torch.backends.mkldnn.enabled = False` turns them off. Writes to `weight.data`, as in merging an adapter,
    take effect with the next decoding.
    """
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    weights = list({id(layer.weight): layer.weight for layer in layers if _can_be_packed(layer.weight)}.values())
    is_fit = sum(weight.numel() for weight in weights) >= _FEWEST_WEIGHTS
    is_fit &= sum(weight.nbytes for weight in weights) <= _MOST_BYTES
    return _PackedProducts(weights) if is_fit else nullcontext()


class _PackedProducts(TorchFunctionMode):
    """Replaces the product inside a layer, so that the hooks and adapters around it still run."""

    def __init__(self, weights: list[nn.Parameter]):
        super().__init__()
        # Holds the weight, too, so that no other object gets its id.
        self._packed = {id(weight): (weight, _state(weight), _pack(weight)) for weight in weights}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is nn.functional.linear and not kwargs and not torch.is_grad_enabled():
            input, weight, *bias = args
            _, state, packed = self._packed.get(id(weight), (None, None, None))
            is_plain = type(input) is torch.Tensor and input.dtype == weight.dtype
            is_plain = is_plain and input.ndim > 1 and input.numel() > 0
            if is_plain and packed is not None and state == _state(weight) and not torch.is_autocast_enabled("cpu"):
                return _multiply(input, packed, *bias)
        return func(*args, **(kwargs or {}))


def _can_be_packed(weight: torch.Tensor) -> bool:
    mkldnn = torch.backends.mkldnn
    return (
        mkldnn.is_available()
        and mkldnn.enabled
        # Quantized weights and those that several devices share are of other classes.
        and type(weight) is nn.Parameter
        and weight.device.type == "cpu"
        # In bfloat16, packed products with AMX depend on the number of rows, and plain ones do not.
        and weight.dtype == torch.float32
        and weight.is_contiguous()
        # The weight can be read as a matrix of 64-bit integers.
        and weight.ndim == 2
        and weight.shape[1] % 2 == 0
        and weight.storage_offset() % 2 == 0
        and not weight.is_inference()
    )


def _state(weight: nn.Parameter) -> tuple:
    return weight._version, weight.data_ptr(), weight.dtype, weight.shape


def _pack(weight: nn.Parameter) -> torch.Tensor:
    # A write to `weight.data` leaves the version as it is, so the weight is read again and summed. The runs that are
    # summed are 0.618 of a row: each begins at another column, and a permutation of columns changes their sums.
    bits = weight.detach().view(torch.int64)
    length = int(0.618 * bits.shape[1]) | 1
    last = bits.numel() // length * length
    sums = torch.cat([bits.flatten()[:last].view(-1, length).sum(dim=1), bits.flatten()[last:]])
    state = _state(weight)
    old_state, old_sums, packed = _PACKED.get(weight, (None, None, None))
    if old_state != state or not torch.equal(old_sums, sums):
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _ROWS)
        _PACKED[weight] = state, sums, packed
    return packed


def _multiply(input: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    rows = input.flatten(0, -2)
    # A single row would be summed in a different order from the rows of a batch.
    several = rows.expand(2, -1) if len(rows) == 1 else rows
    output = torch.ops.mkldnn._linear_pointwise(several, packed, bias, "none", [], "")
    return output[: len(rows)].view(*input.shape[:-1], -1)
