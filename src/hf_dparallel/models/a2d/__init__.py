# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A2D. Importing this folder registers its classes with the Auto classes."""

from ..family import register_family
from .configuration_a2d import A2DLlamaConfig, A2DQwen2Config, A2DQwen3Config
from .modeling_a2d import A2DLlamaForMaskedDiffusion, A2DQwen2ForMaskedDiffusion, A2DQwen3ForMaskedDiffusion


for _model_class in (A2DLlamaForMaskedDiffusion, A2DQwen2ForMaskedDiffusion, A2DQwen3ForMaskedDiffusion):
    register_family(_model_class)

__all__ = [
    "A2DLlamaConfig",
    "A2DLlamaForMaskedDiffusion",
    "A2DQwen2Config",
    "A2DQwen2ForMaskedDiffusion",
    "A2DQwen3Config",
    "A2DQwen3ForMaskedDiffusion",
]
