# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Variants of the training, one a file. A file that is deleted takes its settings with it, and nothing else.

A variant is a dataclass that adds settings to [`Masking`] or [`Objective`] and overrides their hooks.
"""

import importlib
import pkgutil
from dataclasses import dataclass

from ..masking import Masking
from ..objective import Objective


for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


@dataclass(kw_only=True)
class MaskingSettings(*Masking.__subclasses__(), Masking):  # type: ignore[misc]
    """The settings of [`Masking`], with those that variants add."""


@dataclass(kw_only=True)
class LossSettings(*Objective.__subclasses__(), Objective):  # type: ignore[misc]
    """The settings of [`Objective`], with those that variants add."""
