# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The commit rules, one a file, each with its setting, its source and its code."""

from . import confidence_factor as confidence_factor
from . import confidence_threshold as confidence_threshold
from . import denoising_steps as denoising_steps
from . import entropy_bound as entropy_bound
from . import entropy_budget as entropy_budget
from . import entropy_threshold as entropy_threshold
from . import soft_threshold as soft_threshold
