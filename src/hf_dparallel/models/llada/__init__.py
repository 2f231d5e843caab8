# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""LLaDA. Importing this folder registers it with the Auto classes."""

from ..family import register_family
from .configuration_llada import LLaDAConfig
from .modeling_llada import LLaDAForMaskedDiffusion


register_family(LLaDAForMaskedDiffusion)

__all__ = ["LLaDAConfig", "LLaDAForMaskedDiffusion"]
