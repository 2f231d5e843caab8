# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The version of the package, which setup.py reads without importing it."""

__version__ = "0.1.0"
