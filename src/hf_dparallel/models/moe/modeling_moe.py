# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""LLaDA-MoE (https://huggingface.co/papers/2509.24389) and RND1 (https://github.com/RadicalNumerics/RND1).

They are built as the mixture of experts of SDAR is, with full attention; the logits of RND1 are shifted by one.
"""

from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping

from ..family import register_family
from ..sdar.modeling_sdar import SDARMoeForMaskedDiffusion
from .configuration_moe import LLaDAMoeConfig, RND1Config


# As in SDAR's, on disk each expert has its own weights.
for _model_type in (LLaDAMoeConfig.model_type, RND1Config.model_type):
    register_checkpoint_conversion_mapping(_model_type, get_checkpoint_conversion_mapping("qwen3_moe"), overwrite=True)


@register_family
class LLaDAMoeForMaskedDiffusion(SDARMoeForMaskedDiffusion):
    """LLaDA-MoE with its prediction head and [`~DiffusionGenerationMixin.generate`]."""

    config: LLaDAMoeConfig


@register_family
class RND1ForMaskedDiffusion(LLaDAMoeForMaskedDiffusion):
    """RND1 with its prediction head. Like Dream it was started from an autoregressive checkpoint, so it is shifted."""

    config: RND1Config
    shift_logits = True
