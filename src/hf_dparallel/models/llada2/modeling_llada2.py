# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""LLaDA2 (https://huggingface.co/papers/2512.15745): a block-causal mixture of experts, built as GLM-4-MoE is."""

from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.core_model_loading import Split, WeightConverter, WeightRenaming
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeModel, Glm4MoePreTrainedModel

from ..backbones import BlockCausalBackbone
from ..base import MaskedDiffusionModel
from .configuration_llada2 import LLaDA2Config


# Published names on disk, transformers' names in memory, where a layer's experts are one tensor and the projections of
# its attention are three; `save_pretrained` applies the rules backwards.
register_checkpoint_conversion_mapping(
    "llada2_moe",
    [
        *get_checkpoint_conversion_mapping("glm4_moe"),
        WeightRenaming(r"^model\.word_embeddings\.", "model.embed_tokens."),
        WeightRenaming(r"\.attention\.", ".self_attn."),
        WeightRenaming(r"\.self_attn\.dense\.", ".self_attn.o_proj."),
        WeightRenaming(r"\.self_attn\.query_layernorm\.", ".self_attn.q_norm."),
        WeightRenaming(r"\.self_attn\.key_layernorm\.", ".self_attn.k_norm."),
        WeightRenaming(r"\.mlp\.gate\.expert_bias", ".mlp.gate.e_score_correction_bias"),
        WeightConverter(
            source_patterns="query_key_value.weight",
            target_patterns=["q_proj.weight", "k_proj.weight", "v_proj.weight"],
            operations=[Split(dim=0)],
        ),
    ],
    overwrite=True,
)


class LLaDA2PreTrainedModel(Glm4MoePreTrainedModel):
    config: LLaDA2Config
    # Flash attention knows no block-causal mask.
    _supports_flash_attn = False

    @classmethod
    def _can_set_experts_implementation(cls) -> bool:
        # transformers reads the module that a class is in, and the experts are in another one.
        return Glm4MoePreTrainedModel._can_set_experts_implementation()


class LLaDA2Model(BlockCausalBackbone, LLaDA2PreTrainedModel, Glm4MoeModel):
    """The block-causal transformer of LLaDA2, without the head."""


class LLaDA2ForMaskedDiffusion(MaskedDiffusionModel, LLaDA2PreTrainedModel):
    """LLaDA2.0 or LLaDA2.1 with its prediction head and [`~DiffusionGenerationMixin.generate`].

    ```python
    >>> import hf_dparallel
    >>> from transformers import AutoModelForMaskedLM

    >>> checkpoint = "inclusionAI/LLaDA2.0-mini"
    >>> model = AutoModelForMaskedLM.from_pretrained(checkpoint, dtype="bfloat16")  # doctest: +SKIP
    ```
    """

    is_block_causal = True
    backbone_class = LLaDA2Model
