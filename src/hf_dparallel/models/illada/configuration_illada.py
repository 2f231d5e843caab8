# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Configuration of iLLaDA: Llama's, under Llama's names, with a token for masks."""

from huggingface_hub.dataclasses import strict
from transformers import LlamaConfig

from ..family import NO_BLOCKS, PublishedConfigMixin


@strict
class ILLaDAConfig(PublishedConfigMixin, LlamaConfig):
    r"""
    Configuration of an [`ILLaDAForMaskedDiffusion`], such as that of
    [GSAI-ML/iLLaDA-8B-Instruct](https://huggingface.co/GSAI-ML/iLLaDA-8B-Instruct); every argument of
    [`~transformers.LlamaConfig`] is accepted.

    Args:
        mask_token_id (`int`, *optional*, defaults to 5):
            Id of the mask token. Neither the published config.json nor its tokenizer names it: it is the `mask_id` of
            the [published instructions](https://github.com/ML-GSAI/LLaDA).

    Raises:
        ValueError: if the file describes another architecture.
    """

    model_type = "illada"
    # With a `layer_norm_eps` the published code has LayerNorm instead of RMSNorm.
    required_values = {"layer_norm_eps": None, "resid_pdrop": 0.0}
    other_architectures = NO_BLOCKS

    mask_token_id: int | None = 5
