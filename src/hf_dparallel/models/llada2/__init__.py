# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""LLaDA2. Importing this folder registers it with the Auto classes."""

from ..family import register_family
from .configuration_llada2 import LLaDA2Config
from .modeling_llada2 import LLaDA2ForMaskedDiffusion


register_family(LLaDA2ForMaskedDiffusion)

__all__ = ["LLaDA2Config", "LLaDA2ForMaskedDiffusion"]
