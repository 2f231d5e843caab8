# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The settings of the ways to revise decided tokens, one file each, named as in `hf_dparallel.generation.revision`."""

from importlib import import_module
from pkgutil import iter_modules


for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
