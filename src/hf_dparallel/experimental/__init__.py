# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Models and methods that may change or leave between releases."""
