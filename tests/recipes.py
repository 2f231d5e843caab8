# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A recipe that tests share. Helpers of all tests are read where the rule that it needs is missing, too."""

from hf_dparallel import DiffusionGenerationConfig


# A short decode.
RECIPE = DiffusionGenerationConfig(max_new_tokens=8, block_length=4, entropy_threshold=1.0)
