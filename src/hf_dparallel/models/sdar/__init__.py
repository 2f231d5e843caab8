# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""SDAR. Importing this folder registers it with the Auto classes."""

from ..register import register_family
from .configuration_sdar import SDARConfig
from .modeling_sdar import SDARForMaskedDiffusion


register_family(SDARForMaskedDiffusion)

__all__ = ["SDARConfig", "SDARForMaskedDiffusion"]
