# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Estimates the memory of training a model of this package with LoRA, before anybody has a GPU for it.

python scripts/estimate_memory.py llada-8b --max_length 384
"""

import argparse
import copy
import weakref
from dataclasses import dataclass

import torch
from peft import LoraConfig
from peft.helpers import disable_input_dtype_casting
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedConfig

from hf_dparallel import DreamConfig, LLaDA2Config, LLaDAConfig, SDARConfig
from hf_dparallel.training.objective import Objective
from hf_dparallel.training.student import add_adapter


_MODEL_TYPES = ("llada", "Dream", "sdar", "sdar_moe", "llada2_moe")
# NF4 in blocks of 64 with a float32 scale each, as TRL asks bitsandbytes for.
_BITS_OF_4BIT = 4 + 32 / 64


@dataclass
class MemoryEstimate:
    """Bytes that training takes on one device.

    Args:
        weights (`int`): of the base model.
        adapter (`int`): weights, gradients and AdamW's states of the adapter.
        activations (`int`): what is alive beside these at the peak of a step, logits included.
    """

    weights: int
    adapter: int
    activations: int

    @property
    def total(self) -> int:
        """All of it. The device's own overhead (CUDA: about 0.5 GB) comes on top."""
        return self.weights + self.adapter + self.activations


def estimate_training_memory(
    config: PreTrainedConfig,
    *,
    dtype: torch.dtype = torch.bfloat16,
    batch_size: int = 1,
    max_length: int = 384,
    block_length: int = 32,
    num_views: int = 2,
    lora_rank: int = 32,
    activation_checkpointing: bool = True,
    load_in_4bit: bool = False,
) -> MemoryEstimate:
    r"""
    Memory of a step of [`CertaintyForcingTrainer`] with LoRA on all linear layers of attention and MLP, and AdamW.

    The step is run with tensors that have a shape and no content, for two small numbers of layers, and the rest is
    extrapolated: every layer needs the same.

    Args:
        config ([`~transformers.PreTrainedConfig`]):
            Of a model of this package.
        dtype (`torch.dtype`, *optional*, defaults to `torch.bfloat16`):
            Of the weights; those of the adapter are float32. In half precision the step is one with `bf16=True`.
        batch_size (`int`, *optional*, defaults to 1):
            Sequences on the device at a time.
        max_length (`int`, *optional*, defaults to 384), block_length (`int`, *optional*, defaults to 32):
            Length of a sequence and of its active block, in tokens. Block-causal models learn all blocks of their
            own length at once, in rows of two copies; the estimate is that for a sequence without a prompt.
        num_views (`int`, *optional*, defaults to 2):
            Masked rows that a sequence gives: 2 with `complementary_masking`.
        lora_rank (`int`, *optional*, defaults to 32):
            Rank of the adapter.
        activation_checkpointing (`bool`, *optional*, defaults to `True`):
            Whether the activations of a layer are computed again in the backward pass.
        load_in_4bit (`bool`, *optional*, defaults to `False`):
            Whether the linear layers but the head are quantized to 4 bits (NF4), as bitsandbytes does.

    Returns:
        [`MemoryEstimate`]

    Raises:
        ValueError: for the configuration of another model.
    """
    if config.model_type not in _MODEL_TYPES:
        raise ValueError(
            f"`config` must be that of a model of this package ({', '.join(_MODEL_TYPES)}), got model type "
            f"{config.model_type!r}."
        )
    few, more = (
        _run_step(
            _with_layers(config, num_layers),
            dtype,
            num_views * batch_size,
            max_length,
            block_length,
            num_views,
            lora_rank,
            activation_checkpointing,
        )
        for num_layers in (2, 4)
    )
    missing = (config.num_hidden_layers - 4) / 2
    weights, adapter, activations, linear, largest = (
        round(high + missing * (high - low)) for low, high in zip(few, more, strict=True)
    )
    if load_in_4bit:
        weights -= round(linear * (1 - _BITS_OF_4BIT / (8 * dtype.itemsize)))
        # One layer at a time is expanded for its matrix product.
        activations += largest
    return MemoryEstimate(weights, adapter, activations)


def _with_layers(config: PreTrainedConfig, num_layers: int) -> PreTrainedConfig:
    config = copy.deepcopy(config)
    config.num_hidden_layers = num_layers
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = config.layer_types[:1] * num_layers
    config._attn_implementation = "sdpa"
    return config


def _run_step(
    config: PreTrainedConfig,
    dtype: torch.dtype,
    num_rows: int,
    max_length: int,
    block_length: int,
    num_views: int,
    lora_rank: int,
    activation_checkpointing: bool,
) -> tuple[int, int, int, int, int]:
    """Bytes of the base weights, the adapter, and beside them at the peak; of all adapted weights and the largest."""
    with torch.device("meta"):
        base = AutoModelForMaskedLM.from_config(config, dtype=dtype)
        model = add_adapter(base, LoraConfig(r=lora_rank, lora_alpha=lora_rank))
    model.train()
    if activation_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    layers = [module.base_layer.weight for module in model.modules() if hasattr(module, "base_layer")]
    weights = sum(weight.nbytes for weight in model.parameters() if not weight.requires_grad)
    # Weight and gradient, and two states.
    adapter = 4 * sum(weight.nbytes for weight in model.parameters() if weight.requires_grad)
    with FakeTensorMode():
        known = _fake_weights(model)
        length, num_active = max_length, block_length
        if base.attention == "block_causal":
            # The clean copy has no last block.
            length, num_active = 2 * max_length - config.block_length, max_length
        input_ids = torch.zeros(num_rows, length, dtype=torch.long)
        scored = torch.zeros(num_rows, max(1, num_active // num_views), dtype=torch.long)
        mask = torch.ones(num_rows, 1, length, length, dtype=torch.bool) if base.attention == "block_causal" else None
        score = Objective().token_terms

        is_half = dtype.itemsize == 2
        with disable_input_dtype_casting(model, active=is_half), _LiveMemory(known) as memory:
            with torch.autocast("cpu", dtype, enabled=is_half):
                terms = model(
                    input_ids=input_ids,
                    attention_mask=mask,
                    labels=input_ids,
                    logits_to_keep=scored,
                    head_function=score,
                ).head_output
            terms.losses.sum().backward()
    sizes = [weight.nbytes for weight in layers]
    return weights, adapter, memory.peak, sum(sizes), max(sizes)


def _fake_weights(model: nn.Module) -> list[torch.Tensor]:
    """Puts tensors without content, on the device that is computed on, in place of those on the meta device.

    Gives the trainable ones gradients, as after a first step, and returns all tensors.
    """
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            fake = nn.Parameter(torch.empty(weight.shape, dtype=weight.dtype), requires_grad=weight.requires_grad)
            setattr(module, name, fake)
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype))
    trainable = [weight for weight in model.parameters() if weight.requires_grad]
    for weight in trainable:
        weight.grad = torch.empty_like(weight)
    return [*model.parameters(), *model.buffers(), *(weight.grad for weight in trainable)]


class _LiveMemory(TorchDispatchMode):
    """Counts the bytes of all tensors that operations make and that are still referred to.

    Args:
        known (`list[torch.Tensor]`): tensors that do not count, nor do their views.
    """

    def __init__(self, known: list[torch.Tensor]):
        super().__init__()
        self.live = 0
        self.peak = 0
        self._sizes = {tensor.untyped_storage()._cdata: 0 for tensor in known}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self._add, result)
        return result

    def _add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = storage.nbytes()
            self.live += storage.nbytes()
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._remove, key)

    def _remove(self, key: int) -> None:
        self.live -= self._sizes.pop(key)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="llada-8b, dream-7b, sdar-8b, llada2-mini, or a name on the Hub, or a folder")
    parser.add_argument("--batch_size", type=int, default=1, help="sequences on the device at a time")
    parser.add_argument("--max_length", type=int, default=384, help="tokens of a sequence")
    parser.add_argument("--block_length", type=int, default=32, help="tokens that are scored in a sequence")
    parser.add_argument("--lora_rank", type=int, default=32, help="rank of the adapter")
    arguments = vars(parser.parse_args())
    published = {
        "llada-8b": LLaDAConfig,
        "dream-7b": DreamConfig,
        "sdar-8b": SDARConfig,
        "llada2-mini": LLaDA2Config,
    }
    name = arguments.pop("model")
    config = published[name]() if name in published else AutoConfig.from_pretrained(name)
    print("| Base weights | Activation checkpointing | Weights, GB | Adapter, GB | Activations, GB | Total, GB |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for weights in ("bf16", "4-bit"):
        for checkpointing in ("off", "on"):
            settings = {"activation_checkpointing": checkpointing == "on", "load_in_4bit": weights == "4-bit"}
            estimate = estimate_training_memory(config, **settings, **arguments)
            sizes = (estimate.weights, estimate.adapter, estimate.activations, estimate.total)
            print(f"| {weights} | {checkpointing} | {' | '.join(f'{size / 1e9:.1f}' for size in sizes)} |")


if __name__ == "__main__":
    main()
