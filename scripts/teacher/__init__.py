# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The language that the bundled teacher was trained on: how people tell problems about counting things."""
