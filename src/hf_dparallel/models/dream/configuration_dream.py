# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Configuration of Dream: Qwen2's, with a mask token."""

from huggingface_hub.dataclasses import strict
from transformers import Qwen2Config

from ..family import PublishedConfigMixin
from ..sdar.configuration_sdar import SDARConfig


@strict
class DreamConfig(PublishedConfigMixin, Qwen2Config):
    r"""
    Configuration of a [`DreamForMaskedDiffusion`] (Dream 7B, Dream-Coder, DiffuCoder). The defaults come from
    [Dream-org/Dream-v0-Instruct-7B](https://huggingface.co/Dream-org/Dream-v0-Instruct-7B); every argument of
    [`~transformers.Qwen2Config`] is accepted.

    Args:
        mask_token_id (`int`, *optional*, defaults to 151666):
            Id of the mask token.
    """

    model_type = "Dream"
    other_architectures = {
        "block_size": SDARConfig,  # DreamReasoner
        "expand_token_id": "DreamOn inserts and deletes tokens, which is not implemented. Load a Dream-Coder.",
        "rope_scaling_factor": "Say how positions are stretched by `rope_parameters`, as transformers names it.",
    }

    vocab_size: int = 152064
    hidden_size: int = 3584
    intermediate_size: int = 18944
    num_hidden_layers: int = 28
    num_attention_heads: int = 28
    num_key_value_heads: int | None = 4
    max_position_embeddings: int = 131072
    use_cache: bool = False
    rope_theta: float | int = 1000000.0
    mask_token_id: int | None = 151666
    bos_token_id: int | None = 151643
    eos_token_id: int | list[int] | None = 151643
    pad_token_id: int | None = 151643
