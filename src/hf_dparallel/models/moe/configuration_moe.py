# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Configurations of LLaDA-MoE and RND1: Qwen3-MoE's, in the names of the published files, with a mask token."""

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import Qwen3MoeConfig

from ..family import NO_BLOCKS, PublishedConfigMixin


@strict
class LLaDAMoeConfig(PublishedConfigMixin, Qwen3MoeConfig):
    r"""
    Configuration of a [`LLaDAMoeForMaskedDiffusion`]
    ([inclusionAI/LLaDA-MoE-7B-A1B-Instruct](https://huggingface.co/inclusionAI/LLaDA-MoE-7B-A1B-Instruct)); every
    argument of [`~transformers.Qwen3MoeConfig`] is accepted. The file has the `model_type` of LLaDA, and is known by
    its `num_experts`.

    Args:
        norm_topk_prob (`bool`, *optional*):
            Whether the weights of a token's experts add up to 1. In published files it is `null`: they do not.
        mask_token_id, eos_token_id (`int`, *optional*, default to 156895 and 156892):
            Ids of the mask token, which published files do not say, and of the end of an answer.
    """

    model_type = "llada_moe"
    # Switches of the published configuration that name an architecture other than the one all checkpoints have.
    required_values = {
        "mlp_only_layers": [],
        "moe_router_enable_expert_bias": False,
        "moe_router_score_function": "softmax",
        "qk_layernorm": True,
        "routed_scaling_factor": 1,
        "use_sliding_window": False,
    } | dict.fromkeys(["clip_qkv", "router_num_group", "router_topk_group", "shared_expert_intermediate_size"])
    other_architectures = NO_BLOCKS
    attribute_map = {
        "intermediate_size": "dense_intermediate_size",
        "moe_intermediate_size": "expert_intermediate_size",
        "num_local_experts": "num_experts",
    }

    vocab_size: int = 157184
    num_key_value_heads: int = 32
    rope_theta: float | int = 50000
    norm_topk_prob: bool | None = None
    use_cache: bool = False
    mask_token_id: int | None = 156895
    eos_token_id: int | list[int] | None = 156892
    pad_token_id: int | None = 156892

    def __post_init__(self, **kwargs):
        with_experts = kwargs.setdefault("moe_layer_freq", [1] * self.num_hidden_layers)
        super().__post_init__(**({"partial_rotary_factor": 1} | kwargs))
        # Where the published code looks for it.
        self.partial_rotary_factor = 1
        self._check("moe_layer_freq", with_experts, [1])

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"model_type": "llada"}


@strict
class RND1Config(PublishedConfigMixin, Qwen3MoeConfig):
    r"""
    Configuration of a [`RND1ForMaskedDiffusion`]
    ([radicalnumerics/RND1-Base-0910](https://huggingface.co/radicalnumerics/RND1-Base-0910)); every argument of
    [`~transformers.Qwen3MoeConfig`] is accepted.

    Args:
        mask_token_id (`int`, *optional*, defaults to 151669):
            Id of the mask token.
    """

    model_type = "rnd1"
    other_architectures = NO_BLOCKS
    attribute_map = {"num_local_experts": "num_experts"}

    head_dim: int = 128
    sliding_window: int | bool | None = None
    norm_topk_prob: bool = True
    use_cache: bool = False
    rope_theta: float | int = 1000000.0
    mask_token_id: int | None = 151669
    eos_token_id: int | list[int] | None = 151645
    pad_token_id: int | None = 151643
