# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Fast-dLLM v2. Importing this folder registers it with the Auto classes."""

from ..family import register_family
from .configuration_fast_dllm import FastDLLMConfig
from .modeling_fast_dllm import FastDLLMForMaskedDiffusion


register_family(FastDLLMForMaskedDiffusion)

__all__ = ["FastDLLMConfig", "FastDLLMForMaskedDiffusion"]
