# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Configuration of LLaDA: Llama's, in the names that its published `config.json` uses."""

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import LlamaConfig

from ..family import NO_BLOCKS, PublishedConfigMixin
from ..moe.configuration_moe import LLaDAMoeConfig


# Of the vocabulary that all LLaDA checkpoints have.
_VOCAB_SIZE = 126464
_MASK_TOKEN_ID = 126336


@strict
class LLaDAConfig(PublishedConfigMixin, LlamaConfig):
    r"""
    Configuration of a [`LLaDAForMaskedDiffusion`] (LLaDA-8B, LLaDA-1.5). The defaults come from
    [GSAI-ML/LLaDA-8B-Instruct](https://huggingface.co/GSAI-ML/LLaDA-8B-Instruct); every argument of
    [`~transformers.LlamaConfig`] is accepted.

    Attributes carry the published names (`d_model`, `n_heads`, ...); the usual transformers names (`hidden_size`,
    `num_attention_heads`, ...) are aliases. Settings of the published file that change nothing (`init_std`,
    `precision`, ...) are kept and written back.

    Args:
        d_model, mlp_hidden_size, n_layers, n_heads, n_kv_heads, activation_type, max_sequence_length, weight_tying:
            The published names of `hidden_size`, `intermediate_size`, `num_hidden_layers`, `num_attention_heads`,
            `num_key_value_heads`, `hidden_act`, `max_position_embeddings` and `tie_word_embeddings`.
        mask_token_id (`int`, *optional*):
            Id of the mask token, by default 126336, that of LLaDA's own vocabulary.
        eos_token_id, pad_token_id (`int`, *optional*, default to 126081):
            Ids of the end-of-text and padding tokens.

    Raises:
        ValueError: if the file describes another architecture (LLaDA-MoE's is read as a [`LLaDAMoeConfig`]), or has
            another vocabulary and names no mask token.
    """

    model_type = "llada"
    # Switches of the published configuration that name an architecture other than the one all LLaDA checkpoints have.
    required_values = {
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
    other_architectures = NO_BLOCKS | {
        "num_experts": LLaDAMoeConfig,
        "rope_scaling_factor": "Say how positions are stretched by `rope_parameters`, as transformers names it.",
    }
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

    vocab_size: int = _VOCAB_SIZE
    intermediate_size: int = 12288
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5
    use_cache: bool = False
    rope_theta: float | int = 500000.0
    mask_token_id: int | None = None
    # Not in published files, and read by all of transformers.
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = 126081
    pad_token_id: int | None = 126081

    def __post_init__(self, **kwargs):
        if kwargs.get("multi_query_attention"):
            raise ValueError("`multi_query_attention=True` is not supported; set `n_kv_heads=1` instead.")
        # Before sizes are computed from others.
        for name, published in self.attribute_map.items():
            if published in kwargs:
                setattr(self, name, kwargs.pop(published))
        # Published files may pad the embedding beyond the tokenizer's vocabulary.
        self.vocab_size = max(self.vocab_size, kwargs.get("embedding_size") or 0)
        if self.mask_token_id is None:
            self.mask_token_id = self._own_mask_token()

        # Or it would contradict a vocabulary that is resized later.
        super().__post_init__(**kwargs | {"embedding_size": None})

    def _own_mask_token(self) -> int:
        if self.vocab_size == _VOCAB_SIZE:
            return _MASK_TOKEN_ID

        raise ValueError(
            f"`mask_token_id` must be given where the vocabulary is not LLaDA's: {self.vocab_size} tokens instead of "
            f"{_VOCAB_SIZE}, where {_MASK_TOKEN_ID} is the mask. An iLLaDA has the `model_type` 'illada'."
        )

    def to_dict(self) -> dict[str, Any]:
        """Adds `tie_word_embeddings`, which PEFT reads here when it merges trained tokens."""
        return super().to_dict() | {"tie_word_embeddings": self.weight_tying}
