# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""LLaDA-MoE and RND1. Importing this folder registers them with the Auto classes."""

from ..family import register_family
from .configuration_moe import LLaDAMoeConfig, RND1Config
from .modeling_moe import LLaDAMoeForMaskedDiffusion, RND1ForMaskedDiffusion


register_family(LLaDAMoeForMaskedDiffusion)
register_family(RND1ForMaskedDiffusion)

__all__ = ["LLaDAMoeConfig", "LLaDAMoeForMaskedDiffusion", "RND1Config", "RND1ForMaskedDiffusion"]
