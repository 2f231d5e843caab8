# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The settings of decoding, the commit rules, and the measure of certainty: everything that needs no transformers.

`hf_dparallel` decodes with them, and the command line lists the settings in its help. Only `certainty` imports torch,
which takes seconds; a rule calls methods of the tensors that it is given.
"""

from . import rules as rules  # isort: skip
from . import revision as revision  # isort: skip
