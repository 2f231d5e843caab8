# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Configurations of SDAR: Qwen3's and Qwen3-MoE's, with a mask token and the length of a block."""

from huggingface_hub.dataclasses import strict
from transformers import Qwen3Config, Qwen3MoeConfig

from ..family import PublishedConfigMixin


@strict
class SDARConfig(PublishedConfigMixin, Qwen3Config):
    r"""
    Configuration of a [`SDARForMaskedDiffusion`] (SDAR 1.7B, 4B and 8B, TraDo, DreamReasoner). The defaults come from
    [JetLM/SDAR-8B-Chat](https://huggingface.co/JetLM/SDAR-8B-Chat); every argument of [`~transformers.Qwen3Config`]
    is accepted. Settings of the published file that change nothing here (`fuse_cross_entropy`, ...) are kept.

    Args:
        block_size (`int`, *optional*, defaults to 4):
            Tokens of a block: attention is bidirectional inside a block and causal across blocks. `block_length` is
            an alias.
        mask_token_id (`int`, *optional*, defaults to 151669):
            Id of the mask token.
    """

    model_type = "sdar"
    attention = "block_causal"
    served_as = {"sglang": "SDARForCausalLM", "lmdeploy": "SDARForCausalLM"}
    attribute_map = {"block_length": "block_size"}

    intermediate_size: int = 12288
    num_hidden_layers: int = 36
    num_key_value_heads: int | None = 8
    max_window_layers: int = 36
    use_cache: bool = False
    block_size: int = 4
    rope_theta: float | int = 1000000
    mask_token_id: int | None = 151669
    bos_token_id: int | None = 151643
    eos_token_id: int | list[int] | None = 151643


@strict
class SDARMoeConfig(PublishedConfigMixin, Qwen3MoeConfig):
    r"""
    Configuration of a [`SDARMoeForMaskedDiffusion`] (SDAR-30B-A3B). The defaults come from
    [JetLM/SDAR-30B-A3B-Chat](https://huggingface.co/JetLM/SDAR-30B-A3B-Chat); every argument of
    [`~transformers.Qwen3MoeConfig`] is accepted.

    Args:
        block_size, mask_token_id:
            As in [`SDARConfig`].
    """

    model_type = "sdar_moe"
    attention = "block_causal"
    served_as = {"sglang": "SDARMoeForCausalLM", "lmdeploy": "SDARMoeForCausalLM"}
    attribute_map = {"block_length": "block_size", "num_local_experts": "num_experts"}

    num_hidden_layers: int = 48
    head_dim: int = 128
    norm_topk_prob: bool = True
    use_cache: bool = False
    block_size: int = 4
    rope_theta: float | int = 1000000
    mask_token_id: int | None = 151669
    bos_token_id: int | None = 151643
    eos_token_id: int | list[int] | None = 151643
