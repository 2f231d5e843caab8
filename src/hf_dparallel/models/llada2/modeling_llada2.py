# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""LLaDA2 (https://huggingface.co/papers/2512.15745): a block-causal mixture of experts, built as GLM-4-MoE is."""

import torch
from torch.nn.functional import linear, pad
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.core_model_loading import Concatenate, ConversionOps, WeightConverter, WeightRenaming
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeModel, Glm4MoePreTrainedModel, Glm4MoeTopkRouter

from ..backbones import DiffusionBackbone
from ..base import MaskedDiffusionModel
from ..family import register_family
from .configuration_llada2 import LLaDA2Config


class SplitProjections(ConversionOps):
    """Splits the projection of queries, keys and values, as transformers' `Split` does, from 5.20 on."""

    @torch.no_grad()
    def convert(self, input_dict, source_patterns, target_patterns, *, config, **kwargs):
        """Returns the three weights by name. transformers calls it when it loads a checkpoint."""
        (stored,) = input_dict.values()
        whole = stored[0] if isinstance(stored, list) else stored
        heads = (config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads)
        pieces = whole.split([number * config.head_dim for number in heads])
        return {name: piece.contiguous() for name, piece in zip(target_patterns, pieces, strict=True)}

    @property
    def reverse_op(self) -> ConversionOps:
        """Returns what `save_pretrained` does."""
        return Concatenate(dim=0)


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
            operations=[SplitProjections()],
        ),
    ],
    overwrite=True,
)


class LLaDA2PreTrainedModel(Glm4MoePreTrainedModel):
    config: LLaDA2Config
    # transformers reads the module that a class is in, and the experts are in another one.
    _can_set_experts_implementation = Glm4MoePreTrainedModel._can_set_experts_implementation


class BlockRouter(Glm4MoeTopkRouter):
    """The router of LLaDA2.2: the tokens of a block share `expert_capacity` experts, and each token chooses of those.

    Shared are the experts with the highest score of any token of the block; of equal ones, the first. Groups of
    experts play no part (https://github.com/inclusionAI/LLaDA2.X, technical report of LLaDA2.2).
    """

    def __init__(self, config: LLaDA2Config):
        super().__init__(config)
        self.block_length = config.block_length
        self.expert_capacity = config.expert_capacity

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns logits of all experts, and weights and numbers of chosen ones, by token; tokens in whole blocks."""
        router_logits = linear(hidden_states.float(), self.weight.float())
        scores = router_logits.sigmoid()
        choice = scores + self.e_score_correction_bias

        length = choice.shape[1]
        # The last block of a sequence may be shorter.
        blocks = pad(choice, (0, 0, 0, -length % self.block_length), value=-torch.inf)
        best = blocks.unflatten(1, (-1, self.block_length)).amax(dim=2)
        ranked = best.argsort(dim=-1, descending=True, stable=True)
        shared = torch.zeros_like(best, dtype=torch.bool).scatter_(-1, ranked[..., : self.expert_capacity], True)
        shared = shared.repeat_interleave(self.block_length, dim=1)[:, :length]

        ranked = choice.masked_fill(~shared, -torch.inf).argsort(dim=-1, descending=True, stable=True)
        chosen = ranked[..., : self.top_k]
        weights = scores.gather(-1, chosen)
        weights = self.routed_scaling_factor * weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        return router_logits.flatten(0, 1), weights.flatten(0, 1), chosen.flatten(0, 1)


class LLaDA2Model(DiffusionBackbone, LLaDA2PreTrainedModel, Glm4MoeModel):
    def __init__(self, config: LLaDA2Config):
        super().__init__(config)
        if config.expert_capacity is not None:
            for layer in self.layers[config.first_k_dense_replace :]:
                layer.mlp.gate = BlockRouter(config)

    def forward(self, input_ids=None, attention_mask=None, *args, **kwargs):
        """Runs the backbone. Where a block chooses experts, rows must be padded by whole blocks."""
        length = self.config.block_length
        is_checked = self.config.expert_capacity is not None and getattr(attention_mask, "ndim", None) == 2
        if is_checked and ((attention_mask == 0).sum(dim=1) % length).any():
            raise ValueError(
                f"`attention_mask` must have a multiple of {length} zeros in each row, because LLaDA2.2 chooses "
                "experts for a block. Pad by whole blocks, or call `generate`."
            )
        return super().forward(input_ids, attention_mask, *args, **kwargs)


@register_family
class LLaDA2ForMaskedDiffusion(MaskedDiffusionModel, LLaDA2PreTrainedModel):
    """LLaDA2.0, LLaDA2.1 or LLaDA2.2 with its prediction head and [`~DiffusionGenerationMixin.generate`]."""

    backbone_class = LLaDA2Model
