# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Nemotron-Labs-Diffusion (https://huggingface.co/nvidia/Nemotron-Labs-Diffusion-8B): Ministral 3 with free blocks."""

from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightRenaming
from transformers.models.ministral3.modeling_ministral3 import Ministral3Model, Ministral3PreTrainedModel

from ...exact.causal_past import CausalPastMixin
from ..backbones import DiffusionBackbone
from ..base import MaskedDiffusionModel
from ..family import register_family
from .configuration_nemotron import NemotronDiffusionConfig


register_checkpoint_conversion_mapping(
    "nemotron_labs_diffusion",
    [WeightRenaming(r"^encoder\.", "model."), WeightRenaming(r"^diffusion_head\.", "lm_head.")],
    overwrite=True,
)


class NemotronDiffusionModel(DiffusionBackbone, Ministral3Model):
    config: NemotronDiffusionConfig


@register_family
class NemotronDiffusionForMaskedDiffusion(CausalPastMixin, MaskedDiffusionModel, Ministral3PreTrainedModel):
    """Nemotron-Labs-Diffusion with its prediction head and [`~DiffusionGenerationMixin.generate`].

    Prompt and decided tokens are a causal past, and the open block sees them and itself. Blocks are counted from the
    first new token. The last token before a block predicts its first one, which a pass decides alone, as the official
    sampler does: the pass that computes a decided block as past is the first one over the next block. In that block
    `logits[:, i]` scores token `i`; in the past it scores token `i + 1`, as in an autoregressive model.

    The published training also adds an autoregressive loss on the clean copy: `autoregressive_weight` of the
    experimental `AutoregressiveLossConfig`.
    """

    config: NemotronDiffusionConfig
    predicts_next_block = True
    backbone_class = NemotronDiffusionModel
    # Scales of an 8-bit cache, for serving engines.
    _keys_to_ignore_on_load_unexpected = [r"\.[kv]_scale$"]
