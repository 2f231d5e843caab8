# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Revision: decided tokens of the open blocks may change, until their row leaves the block. One way is one module.

Every module of this folder is imported here, and registers itself; nothing else names one.
"""

import pkgutil
from importlib import import_module


for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
