# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Configuration of LLaDA2: GLM-4-MoE's, in the names that its published `config.json` uses."""

from huggingface_hub.dataclasses import strict
from transformers import Glm4MoeConfig

from ..family import PublishedConfigMixin


@strict
class LLaDA2Config(PublishedConfigMixin, Glm4MoeConfig):
    r"""
    Configuration of a [`LLaDA2ForMaskedDiffusion`] (LLaDA2.0, LLaDA2.1 and LLaDA2.2). The defaults come from
    [inclusionAI/LLaDA2.0-mini](https://huggingface.co/inclusionAI/LLaDA2.0-mini); every argument of
    [`~transformers.Glm4MoeConfig`] is accepted. Settings of the published file that change nothing here
    (`max_window_layers`, ...) are kept and written back.

    Args:
        num_experts (`int`, *optional*, defaults to 256):
            Experts of a layer, of which the router chooses `num_experts_per_tok` for each token.
        num_shared_experts (`int`, *optional*, defaults to 1):
            Experts of a layer that take part for every token.
        n_group, topk_group (`int`, *optional*, default to 8 and 4):
            Groups that the experts are in, and how many of them a token's experts are chosen from.
        first_k_dense_replace (`int`, *optional*, defaults to 1):
            First layers, which have one dense MLP (of width `intermediate_size`) instead of experts.
        partial_rotary_factor (`float`, *optional*, defaults to 0.5):
            Share of each head's dimensions that the rotary embedding turns.
        block_length (`int`, *optional*, defaults to 32):
            Tokens of a block: attention is bidirectional inside a block and causal across blocks. The published files
            do not say it; LLaDA2.2's do, as `block_size`.
        expert_capacity (`int`, *optional*):
            How many experts the tokens of a block share (LLaDA2.2). By default each token chooses of all.
        mask_token_id, eos_token_id (`int`, *optional*, default to 156895 and 156892):
            Ids of the mask token and of the end of an answer, as in the published code. The published files do not
            say.

    Raises:
        ValueError: if the file describes another architecture.
    """

    model_type = "llada2_moe"
    attention = "block_causal"
    served_as = {"sglang": "LLaDA2MoeModelLM"}
    # Switches of the published configuration that name an architecture other than the one all LLaDA2 checkpoints have.
    required_values = {
        "use_bias": False,
        "use_qkv_bias": False,
        "use_qk_norm": True,
        "use_rmsnorm": True,
        "use_sliding_window": False,
        "norm_head": False,
        "norm_softmax": False,
        "score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "using_split_qkv_in_self_attention": False,
        "embedding_dropout": 0.0,
        "output_dropout": 0.0,
        "norm_topk_prob": True,
        "router_dtype": "fp32",
    }
    attribute_map = {
        "n_routed_experts": "num_experts",
        "num_local_experts": "num_experts",
        "n_shared_experts": "num_shared_experts",
    }
    # The attention stays whole: its weights are one matrix on disk, which cannot be cut between heads.
    base_model_tp_plan = {
        module: plan for module, plan in Glm4MoeConfig.base_model_tp_plan.items() if "self_attn" not in module
    }

    vocab_size: int = 157184
    hidden_size: int = 2048
    intermediate_size: int = 5120
    num_hidden_layers: int = 20
    num_attention_heads: int = 16
    num_key_value_heads: int = 4
    head_dim: int = 128
    max_position_embeddings: int = 32768
    rms_norm_eps: float = 1e-6
    use_cache: bool = False
    rope_theta: float | int = 600000
    partial_rotary_factor: float | int = 0.5
    moe_intermediate_size: int = 512
    n_routed_experts: int = 256
    routed_scaling_factor: float | int = 2.5
    n_group: int = 8
    topk_group: int = 4
    use_qk_norm: bool = True
    block_length: int = 32
    expert_capacity: int | None = None
    mask_token_id: int | None = 156895
    eos_token_id: int | list[int] | None = 156892
    pad_token_id: int | None = 156892
    num_mtp_layers: int = 0

    def __post_init__(self, **kwargs):
        if self.expert_capacity is not None:
            self.block_length = kwargs.setdefault("block_size", self.block_length)
        super().__post_init__(partial_rotary_factor=self.partial_rotary_factor, **kwargs)
        # Where the published code looks for it.
        self.partial_rotary_factor = self.rope_parameters["partial_rotary_factor"]
        rotary_dim = int(self.head_dim * self.partial_rotary_factor)
        self._check("rotary_dim", [kwargs.get("rotary_dim", rotary_dim)], [rotary_dim])
