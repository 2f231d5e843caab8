# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Configuration of LLaDA, in the names that its published `config.json` uses."""

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import LlamaConfig, PreTrainedConfig
from transformers.modeling_rope_utils import RopeParameters

from ..family import NO_BLOCKS, PublishedConfigMixin
from ..moe.configuration_moe import LLaDAMoeConfig


@strict
class LLaDAConfig(PublishedConfigMixin, PreTrainedConfig):
    r"""
    Configuration of a [`LLaDAForMaskedDiffusion`] (LLaDA-8B, LLaDA-1.5, iLLaDA). The defaults come from
    [GSAI-ML/LLaDA-8B-Instruct](https://huggingface.co/GSAI-ML/LLaDA-8B-Instruct).

    Attributes carry the published names (`d_model`, `n_heads`, ...); the usual transformers names (`hidden_size`,
    `num_attention_heads`, ...) are aliases. Settings of the published file that change nothing (`init_std`,
    `precision`, ...) are kept and written back.

    Args:
        vocab_size (`int`, *optional*, defaults to 126464):
            Rows of the token embedding.
        d_model (`int`, *optional*, defaults to 4096):
            Width of the hidden states.
        mlp_hidden_size (`int`, *optional*, defaults to 12288):
            Width of the gated MLP.
        n_layers (`int`, *optional*, defaults to 32):
            Number of transformer blocks.
        n_heads (`int`, *optional*, defaults to 32):
            Number of query heads.
        n_kv_heads (`int`, *optional*):
            Number of key/value heads. Defaults to `n_heads`.
        activation_type (`str`, *optional*, defaults to `"silu"`):
            Activation of the MLP gate.
        max_sequence_length (`int`, *optional*, defaults to 4096):
            Longest sequence the model was trained for.
        initializer_range (`float`, *optional*, defaults to 0.02):
            Standard deviation of new weights.
        rms_norm_eps (`float`, *optional*, defaults to 1e-5):
            Epsilon of the RMS norms.
        rope_theta (`float`, *optional*, defaults to 500000.0):
            Base of the rotary embedding.
        weight_tying (`bool`, *optional*, defaults to `False`):
            Whether head and embedding share weights.
        attention_dropout (`float`, *optional*, defaults to 0.0):
            Dropout of the attention weights.
        mask_token_id (`int`, *optional*, defaults to 126336):
            Id of the mask token.
        eos_token_id, pad_token_id (`int`, *optional*, default to 126081):
            Ids of the end-of-text and padding tokens.

    Raises:
        ValueError: if the file describes another architecture. (LLaDA-MoE's is read as a [`LLaDAMoeConfig`].)
    """

    model_type = "llada"
    # Switches of the published configuration that name an architecture other than the one all LLaDA checkpoints have.
    only_supported = {
        "block_type": "llama",
        "block_group_size": 1,
        "layer_norm_type": "rms",
        "rope": True,
        "alibi": False,
        "attention_layer_norm": False,
        "input_emb_norm": False,
        "scale_logits": False,
        "include_bias": False,
        "include_qkv_bias": False,
        "bias_for_layer_norm": False,
        "embedding_dropout": 0.0,
        "residual_dropout": 0.0,
        "clip_qkv": None,
        "layer_norm_with_affine": True,
        "activation_type": "silu",
    }
    told_apart = NO_BLOCKS | {
        "num_experts": LLaDAMoeConfig,
        "rope_scaling_factor": "Say how positions are stretched by `rope_parameters`, as transformers names it.",
    }
    keys_to_ignore_at_inference = ["past_key_values"]
    # Not in published files, and read by all of transformers.
    bos_token_id = None
    attribute_map = {
        "hidden_size": "d_model",
        "intermediate_size": "mlp_hidden_size",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "num_key_value_heads": "n_kv_heads",
        "hidden_act": "activation_type",
        "max_position_embeddings": "max_sequence_length",
        "tie_word_embeddings": "weight_tying",
    }
    base_model_tp_plan = LlamaConfig.base_model_tp_plan

    vocab_size: int = 126464
    embedding_size: int | None = None
    d_model: int = 4096
    mlp_hidden_size: int = 12288
    n_layers: int = 32
    n_heads: int = 32
    n_kv_heads: int | None = None
    activation_type: str = "silu"
    max_sequence_length: int = 4096
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-5
    rope_theta: float | int = 500000.0
    rope_parameters: RopeParameters | dict | None = None
    weight_tying: bool = False
    attention_dropout: int | float = 0.0
    attention_bias: bool = False
    mlp_bias: bool = False
    use_cache: bool = False
    mask_token_id: int | None = 126336
    eos_token_id: int | list[int] | None = 126081
    pad_token_id: int | None = 126081

    def __post_init__(self, **kwargs):
        if kwargs.get("multi_query_attention"):
            raise ValueError("`multi_query_attention=True` is not supported; set `n_kv_heads=1` instead.")
        if self.n_kv_heads is None:
            self.n_kv_heads = self.n_heads
        # Published files may pad the embedding beyond the tokenizer's vocabulary.
        if self.embedding_size is not None:
            self.vocab_size = max(self.vocab_size, self.embedding_size)
            # Or it would contradict a vocabulary that is resized later.
            self.embedding_size = None
        super().__post_init__(**kwargs)

    def to_dict(self) -> dict[str, Any]:
        """Adds `tie_word_embeddings`, which PEFT reads here when it merges trained tokens."""
        return super().to_dict() | {"tie_word_embeddings": self.weight_tying}

    @property
    def head_dim(self) -> int:
        return self.d_model // self.n_heads
