# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""hf-dparallel in the lm-evaluation-harness (extra `[eval]`). Importing this registers the model `hf-dparallel`."""

from .model import DiffusionHarnessLM as DiffusionHarnessLM
