# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Dream (https://huggingface.co/papers/2508.15487): a bidirectional Qwen2 whose logits are shifted by one."""

from transformers.models.qwen2.modeling_qwen2 import Qwen2PreTrainedModel

from ..backbones import Qwen2Backbone
from ..base import MaskedDiffusionModel
from ..family import register_family
from .configuration_dream import DreamConfig


@register_family
class DreamForMaskedDiffusion(MaskedDiffusionModel, Qwen2PreTrainedModel):
    """Dream with its prediction head and [`~DiffusionGenerationMixin.generate`].

    Dream was started from Qwen2.5, so its hidden state at position `i - 1` predicts token `i`. The shift happens
    here: `logits[:, i]` scores token `i` like in every other model, and neither loss nor decoding know of it.
    """

    config: DreamConfig
    shift_logits = True
    backbone_class = Qwen2Backbone
