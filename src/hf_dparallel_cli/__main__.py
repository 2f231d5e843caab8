# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Runs `hf-dparallel` as `python -m hf_dparallel_cli`, for launchers of several processes."""

import sys

from . import main


if __name__ == "__main__":
    sys.exit(main())
