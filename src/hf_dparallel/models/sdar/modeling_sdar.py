# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""SDAR (https://huggingface.co/papers/2510.06303): a block-causal Qwen3, dense or a mixture of experts."""

from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.models.qwen3.modeling_qwen3 import Qwen3PreTrainedModel
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeModel, Qwen3MoePreTrainedModel

from ..backbones import DiffusionBackbone, Qwen3Backbone
from ..base import MaskedDiffusionModel
from ..family import register_family
from .configuration_sdar import SDARConfig, SDARMoeConfig


# On disk each expert has its own weights; in memory all experts of a layer are one tensor.
register_checkpoint_conversion_mapping("sdar_moe", get_checkpoint_conversion_mapping("qwen3_moe"), overwrite=True)


@register_family
class SDARForMaskedDiffusion(MaskedDiffusionModel, Qwen3PreTrainedModel):
    """SDAR with its prediction head and [`~DiffusionGenerationMixin.generate`]. TraDo has the same architecture.

    The length of a block, `config.block_length`, belongs to the checkpoint.
    """

    config: SDARConfig
    backbone_class = Qwen3Backbone


class SDARMoePreTrainedModel(Qwen3MoePreTrainedModel):
    config: SDARMoeConfig
    # transformers reads the module that a class is in, and the experts are in another one.
    _can_set_experts_implementation = Qwen3MoePreTrainedModel._can_set_experts_implementation


class SDARMoeModel(DiffusionBackbone, SDARMoePreTrainedModel, Qwen3MoeModel):
    """The block-causal mixture of experts of SDAR-30B-A3B, without the head."""


@register_family
class SDARMoeForMaskedDiffusion(MaskedDiffusionModel, SDARMoePreTrainedModel):
    """SDAR-30B-A3B with its prediction head and [`~DiffusionGenerationMixin.generate`]."""

    backbone_class = SDARMoeModel
