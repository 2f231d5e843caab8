# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Configuration of Fast-dLLM v2: Qwen2's, with a mask token and the length of a block."""

from huggingface_hub.dataclasses import strict
from transformers import Qwen2Config

from ..family import PublishedConfigMixin


@strict
class FastDLLMConfig(PublishedConfigMixin, Qwen2Config):
    r"""
    Configuration of a [`FastDLLMForMaskedDiffusion`]. The defaults come from
    [Efficient-Large-Model/Fast_dLLM_v2_7B](https://huggingface.co/Efficient-Large-Model/Fast_dLLM_v2_7B); every
    argument of [`~transformers.Qwen2Config`] is accepted.

    Args:
        bd_size (`int`, *optional*, defaults to 32):
            Tokens of a block: attention is bidirectional inside a block and causal across blocks. `block_length` is
            an alias.
        mask_token_id (`int`, *optional*, defaults to 151665):
            Id of the mask token, which published files do not name.
    """

    model_type = "Fast_dLLM_Qwen"
    attention = "block_causal"
    attribute_map = {"block_length": "bd_size"}

    vocab_size: int = 152064
    hidden_size: int = 3584
    intermediate_size: int = 18944
    num_hidden_layers: int = 28
    num_attention_heads: int = 28
    num_key_value_heads: int | None = 4
    bd_size: int = 32
    rope_theta: float | int = 1000000.0
    mask_token_id: int | None = 151665
    bos_token_id: int | None = 151643
    eos_token_id: int | list[int] | None = 151645
    pad_token_id: int | None = 151645
