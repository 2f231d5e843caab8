# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The memory that a model takes, known from its configuration before its weights are downloaded.

Two of its layers run on the meta device, whose tensors have a shape and no content. The others need the same.
"""

import weakref
from typing import Any

import torch
from peft import LoraConfig
from peft.helpers import disable_input_dtype_casting
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModelForMaskedLM,
    DynamicCache,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.integrations.sdpa_attention import repeat_kv
from transformers.masking_utils import sdpa_mask
from transformers.quantizers.base import get_keys_to_not_convert

from hf_dparallel_cli.command import Flags
from hf_dparallel_rules.certainty import measure_certainty

from ..generation.cache import WindowCache
from ..generation.plan import Pass
from ..generation.prediction import predict_tokens
from ..training.objective import Objective
from ..training.student import add_adapter


# NF4 in blocks of 64 with a float32 scale each, as bitsandbytes quantizes.
_BITS_OF_4BIT = 4 + 32 / 64
# Device memory of a process beside tensors: about the size of the CUDA context.
_OVERHEAD = 5 * 10**8
# Masked rows per sequence: `complementary_masking` makes two.
_NUM_VIEWS = 2
_ATTENTION = "fused_on_meta"


def make_skeleton(config: PreTrainedConfig, dtype: str) -> PreTrainedModel:
    """Returns the model of a configuration, with weights that have no content."""
    chosen = (config.dtype or torch.float32) if dtype == "auto" else getattr(torch, dtype)
    with torch.device("meta"):
        return AutoModelForMaskedLM.from_config(config, dtype=chosen, attn_implementation=_ATTENTION)


def estimate_memory(config: PreTrainedConfig, work: Flags) -> dict[str, int]:
    """Returns the bytes that a model of this package takes to decode or, with `work.train`, in a training step.

    `work` has the flags of `hf-dparallel fit`, the resolved `block_length`, `is_cached`, the `length` of a row, and
    how much of it is `computed` at once. What is trained is `adapter`: weights, gradients and two states of AdamW.
    """
    model = make_skeleton(config, work.dtype)
    weights, adapter, expanded = sum(weight.nbytes for weight in model.parameters()), 0, 0
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    if work.train and work.use_peft:
        names = model.target_modules
        adapted = [module for name, module in linear.items() if name.rpartition(".")[2] in names]
        # Four times in float32.
        adapter = 16 * work.lora_r * sum(module.in_features + module.out_features for module in adapted)
    elif work.train:
        adapter = 3 * weights
    if work.load_in_4bit:
        kept = get_keys_to_not_convert(model)
        sizes = [module.weight.nbytes for name, module in linear.items() if name not in kept]
        weights -= round(sum(sizes) * (1 - _BITS_OF_4BIT / (8 * model.dtype.itemsize)))
        # One layer at a time is expanded for its matrix product.
        expanded = max(sizes)
    for weight in model.parameters():
        if weight.ndim == 3:
            # Products of experts without content are known in bfloat16 only.
            weight.data = weight.data.bfloat16()
    peak, cache = (_denoise if model.noise == "uniform" else _run)(model, work)
    parts = {"weights": weights, "adapter": adapter, "cache": cache, "activations": peak + expanded - cache}
    return parts | {"overhead": _OVERHEAD}


def _run(model: PreTrainedModel, work: Flags) -> tuple[int, int]:
    """Returns the bytes that are alive at the peak beside the weights, and those of the cache. Two layers run."""
    num_others = len(model.model.layers) - 2
    model.model.layers = model.model.layers[:2]
    length, num_scored, rows = work.computed, work.block_length, work.batch_size
    if work.train:
        if model.attention != "full":
            # All blocks are learned at once, in rows of two copies. The clean one has no last block.
            length, num_scored = 2 * length - model.config.block_length, length
        num_scored, rows = max(1, num_scored // _NUM_VIEWS), _NUM_VIEWS * work.per_device_train_batch_size
    with torch.device("meta"):
        ids = torch.zeros(rows, length, dtype=torch.long)
        scored = torch.zeros(rows, num_scored, dtype=torch.long)
        mask = torch.ones(rows, 1, length, length, dtype=torch.bool) if model.attention != "full" else None
        inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": torch.arange(length).expand(rows, -1)}
        if work.train:
            peak, kept = _train(model, inputs, scored, work)
            return peak + num_others * kept, 0
        cache = DynamicCache()
        with torch.no_grad(), _LiveMemory(model) as memory:
            measure_certainty(model.score(inputs | ({"past_key_values": cache} if work.is_cached else {}), scored), 0)
    computed = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers) // max(len(cache.layers), 1)
    kept = computed * work.length // work.computed
    return memory.peak - 2 * computed + (num_others + 2) * kept, (num_others + 2) * kept


@torch.no_grad()
def _denoise(model: Any, work: Flags) -> tuple[int, int]:
    """Returns the bytes at the peak beside the weights, and those of the cache. One layer of each kind runs."""
    text = model.config.get_text_config()
    kinds, places = text.layer_types, {kind: place for place, kind in enumerate(text.layer_types)}
    text.layer_types = list(places)
    for half in (model.model.encoder.language_model, model.model.decoder):
        half.layers = nn.ModuleList(half.layers[place] for place in places.values())
        for place, layer in enumerate(half.layers):
            layer.self_attn.layer_idx = place
    size, prompt = work.block_length, work.computed - work.block_length
    width = prompt + -(-(work.length - prompt) // size) * size
    with torch.device("meta"), _LiveMemory(model) as memory:
        ids, cache = torch.zeros(work.batch_size, width, dtype=torch.long), WindowCache(len(places))
        cache.resize([], work.batch_size, width, ids.device)
        cache.select(Pass(None, slice(0, prompt), ids[:, :0], prompt, None))
        # The prompt is stored; the last canvas sees all that precedes it.
        inputs = {"past_key_values": cache, **dict.fromkeys(("position_ids", "attention_mask"), ids[:, :prompt])}
        model.score(inputs | {"input_ids": ids[:, :prompt]}, ids[:, :0])
        states = model.embed_canvas(ids[:, :size])
        inputs |= {"position_ids": ids[:, :size], "attention_mask": ids[:, : width - size]}
        inputs["inputs_embeds"] = model.condition(states, states)
        predict_tokens(model.score(inputs, ids), None, temperature=1.0)
    kept = {kind: layer.keys.nbytes + layer.values.nbytes for kind, layer in zip(places, cache.layers, strict=True)}
    num_bytes = sum(kept[kind] for kind in kinds)
    return memory.peak - sum(kept.values()) + num_bytes, num_bytes


def _train(model: Any, inputs: dict[str, Any], scored: torch.Tensor, work: Flags) -> tuple[int, int]:
    """Returns the bytes at the peak beside the weights, and those that each layer leaves until then."""
    layers, lives = model.model.layers, []
    if work.use_peft:
        model = add_adapter(model, LoraConfig(r=work.lora_r))
    model.train()
    if work.activation_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    for weight in filter(lambda weight: weight.requires_grad, model.parameters()):
        weight.grad = torch.empty_like(weight)  # of the step before
    head = {"labels": inputs["input_ids"], "logits_to_keep": scored, "head_function": Objective().token_terms}
    with _LiveMemory(model) as memory, disable_input_dtype_casting(model, active=work.bf16):
        for layer in layers:
            layer.register_forward_hook(lambda *args: lives.append(memory.live))
        # Tensors of the meta device are cast as those of a CPU.
        with torch.autocast("cpu", torch.bfloat16, enabled=work.bf16):
            output = model(**inputs, **head).head_output
        output.losses.sum().backward()
    return memory.peak, lives[-1] - lives[0]


def _attend(module, query, key, value, attention_mask, scaling=None, **kwargs) -> tuple[torch.Tensor, None]:
    """Keeps what fused kernels keep. On the meta device, SDPA would keep the scores of all pairs."""
    if attention_mask is not None:
        key, value = (repeat_kv(states, module.num_key_value_groups) for states in (key, value))
        attention_mask = attention_mask.to(query.dtype)
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    output = fused(query, key, value, attn_mask=attention_mask, scale=scaling)[0]
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register(_ATTENTION, _attend)
AttentionMaskInterface.register(_ATTENTION, sdpa_mask)


class _LiveMemory(TorchDispatchMode):
    """Counts the bytes of tensors that operations make, while they are referred to, but for weights and gradients."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.live = self.peak = 0
        gradients = (weight.grad for weight in model.parameters() if weight.grad is not None)
        known = [*model.parameters(), *model.buffers(), *gradients]
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
