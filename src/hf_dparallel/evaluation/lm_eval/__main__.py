# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Runs the command `lm_eval` with the model `hf-dparallel`: `python -m hf_dparallel.evaluation.lm_eval`.

lm-eval has no way to find models of other packages by itself.
"""

from lm_eval.__main__ import cli_evaluate


if __name__ == "__main__":
    cli_evaluate()
