# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Dream. Importing this folder registers it with the Auto classes."""

from transformers import AutoTokenizer

from ..family import register_family
from .configuration_dream import DreamConfig
from .modeling_dream import DreamForMaskedDiffusion
from .tokenization_dream import DreamTokenizer


register_family(DreamForMaskedDiffusion)
AutoTokenizer.register(DreamConfig, tokenizer_class=DreamTokenizer, exist_ok=True)

__all__ = ["DreamConfig", "DreamForMaskedDiffusion", "DreamTokenizer"]
