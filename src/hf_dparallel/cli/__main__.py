# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`python -m hf_dparallel.cli` is `hf-dparallel`."""

import sys

from . import main


if __name__ == "__main__":
    sys.exit(main())
