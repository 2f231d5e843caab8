# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The commit rules, one a file, each with its settings, its source and its code. Nothing else names these files."""

from importlib import import_module
from pkgutil import iter_modules


for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
