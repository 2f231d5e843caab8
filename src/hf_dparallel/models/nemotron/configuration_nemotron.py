# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Configuration of Nemotron-Labs-Diffusion: Ministral 3's, with a mask token and the length of a block."""

from huggingface_hub.dataclasses import strict
from transformers import Ministral3Config

from ..family import PublishedConfigMixin


@strict
class NemotronDiffusionConfig(PublishedConfigMixin, Ministral3Config):
    r"""
    Configuration of a [`NemotronDiffusionForMaskedDiffusion`]. The defaults come from
    [nvidia/Nemotron-Labs-Diffusion-8B](https://huggingface.co/nvidia/Nemotron-Labs-Diffusion-8B); every argument of
    [`~transformers.Ministral3Config`] is accepted. Settings of the published training are kept and written back.

    Args:
        block_size (`int`, *optional*, defaults to 32):
            Tokens of a block. `block_length` is an alias.
        mask_token_id (`int`, *optional*, defaults to 100):
            Id of the mask token.
    """

    model_type = "nemotron_labs_diffusion"
    attention = "causal_past"
    block_origin = "answer"
    required_values = {"attention_bias": False, "mlp_bias": False, "sliding_window": None}
    attribute_map = {"block_length": "block_size"}

    use_cache: bool = False
    block_size: int = 32
    mask_token_id: int | None = 100
    pad_token_id: int | None = None
    eos_token_id: int | list[int] | None = 11
