# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The settings of decoding and the commit rules, apart from `hf_dparallel` so that help needs no transformers.

Only `certainty` imports torch, which takes seconds; a rule calls methods of the tensors that it is given.
"""

from . import rules as rules
