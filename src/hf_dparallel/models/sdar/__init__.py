# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""SDAR. Importing this folder registers its classes with the Auto classes."""

from ..family import register_family
from .configuration_sdar import SDARConfig, SDARMoeConfig
from .modeling_sdar import SDARForMaskedDiffusion, SDARMoeForMaskedDiffusion


register_family(SDARForMaskedDiffusion)
register_family(SDARMoeForMaskedDiffusion)

__all__ = ["SDARConfig", "SDARForMaskedDiffusion", "SDARMoeConfig", "SDARMoeForMaskedDiffusion"]
