# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Fast-dLLM v2 (https://huggingface.co/papers/2509.26328): a block-causal Qwen2 whose logits are shifted by one."""

from transformers.models.qwen2.modeling_qwen2 import Qwen2PreTrainedModel

from ..backbones import Qwen2Backbone
from ..base import MaskedDiffusionModel
from ..family import register_family
from .configuration_fast_dllm import FastDLLMConfig


@register_family
class FastDLLMForMaskedDiffusion(MaskedDiffusionModel, Qwen2PreTrainedModel):
    """Fast-dLLM v2 with its prediction head and [`~DiffusionGenerationMixin.generate`].

    The hidden state at position `i - 1` predicts token `i`, across blocks, too, and `logits[:, i]` scores token `i`.
    The last token before a block therefore predicts its first one, which a pass decides alone, as the official
    sampler does. That sampler also decides sub-blocks of a block from left to right; here a block is one.
    """

    config: FastDLLMConfig
    shift_logits = True
    backbone_class = Qwen2Backbone
