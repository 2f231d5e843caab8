# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Runs the command `lm_eval` with the model `hf-dparallel`: `python -m hf_dparallel.evaluation.lm_eval`.

lm-eval has no way to find models of other packages by itself.
"""

import shutil

from lm_eval.__main__ import cli_evaluate

from .programs import mend_filters, use_sandbox


if __name__ == "__main__":
    if shutil.which("bwrap"):
        use_sandbox()
        mend_filters()
    cli_evaluate()
