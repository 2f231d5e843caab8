# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Nemotron-Labs-Diffusion. Importing this folder registers it with the Auto classes."""

from ..family import register_family
from .configuration_nemotron import NemotronDiffusionConfig
from .modeling_nemotron import NemotronDiffusionForMaskedDiffusion


register_family(NemotronDiffusionForMaskedDiffusion)

__all__ = ["NemotronDiffusionConfig", "NemotronDiffusionForMaskedDiffusion"]
