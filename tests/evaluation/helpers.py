# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What tests of this folder share."""

from hf_dparallel import DiffusionGenerationConfig


# A short decode.
RECIPE = DiffusionGenerationConfig(max_new_tokens=8, block_length=4, entropy_threshold=1.0)
