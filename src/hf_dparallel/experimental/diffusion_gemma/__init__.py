# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""DiffusionGemma (https://huggingface.co/google/diffusiongemma-26B-A4B-it): a model, a loop, a collator, a trainer."""
