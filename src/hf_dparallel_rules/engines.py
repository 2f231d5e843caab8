# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The settings that emulate serving engines."""

from .settings import add_setting


# fmt: off
add_setting("engine", "engine", str, off="hf-dparallel", choices=("hf-dparallel", "sglang", "lmdeploy"),
    not_with=("compile_config",),
    model={"is_served": "does not support {model}, only SDAR (both engines) and LLaDA2 (SGLang)"},
    source="https://docs.sglang.io",
    help="Decode as this serving engine does, to calibrate a threshold for it here. SGLang takes "
    "`confidence_threshold` (`LowConfidence`), also with `editing_threshold` (`JointThreshold`), "
    "and others by plug-in; LMDeploy takes `confidence_threshold` or `min_commits`.")
add_setting("penalty_lambda", "engine", float, off=0.0, needs=("engine", "editing_threshold"),
    help="With SGLang's editing: lowers the logit of the previous position's token, to avoid repetition.")
# fmt: on
