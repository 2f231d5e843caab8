# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""DiffusionGemma. Importing this folder registers its class with Auto classes that transformers has none for.

The configuration and all other Auto classes stay those of transformers.
"""

from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, DiffusionGemmaConfig

from .modeling_diffusion_gemma import DiffusionGemmaForBlockDiffusion


for auto_class in (AutoModelForMaskedLM, AutoModelForCausalLM):
    auto_class.register(DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion, exist_ok=True)

__all__ = ["DiffusionGemmaForBlockDiffusion"]
