# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Variants of the training, one a file. A file that is deleted takes its settings with it, and nothing else.

A variant is a dataclass that adds settings to [`Masking`] or [`Objective`] and overrides their hooks.
"""

import importlib
import inspect
import pkgutil
from dataclasses import dataclass

from ..masking import Masking
from ..objective import Objective


_MODULES = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]


def _variants_of(base: type) -> list[type]:
    """The classes in the files of this folder that add to `base`."""
    classes = [found for module in _MODULES for _, found in inspect.getmembers(module, inspect.isclass)]
    return [found for found in classes if issubclass(found, base) and found is not base]


@dataclass(kw_only=True)
class MaskingSettings(*_variants_of(Masking), Masking):  # type: ignore[misc]
    """The settings of [`Masking`], with those that variants add."""


@dataclass(kw_only=True)
class LossSettings(*_variants_of(Objective), Objective):  # type: ignore[misc]
    """The settings of [`Objective`], with those that variants add."""
