# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Revision: decided tokens of the open blocks may change, until their row leaves the block. One way is one module."""
