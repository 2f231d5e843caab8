# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The commands of `hf-dparallel`, one module each. The table of them is in `hf_dparallel_cli`, outside the package."""

from hf_dparallel_cli import COMMANDS as COMMANDS
from hf_dparallel_cli import main as main
