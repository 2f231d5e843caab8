# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Variants of the training, one a file. To remove one, delete its file and its name here."""

from dataclasses import dataclass

from ..masking import Masking
from .on_policy import OnPolicyRows
from .soft_targets import SoftTargets


@dataclass(kw_only=True)
class MaskingSettings(
    OnPolicyRows,
    SoftTargets,
    Masking,
):
    """The settings of [`Masking`], and those that variants add."""
