# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The settings of editing."""

from ..settings import THRESHOLD, add_setting


# fmt: off
add_setting("editing_threshold", "revision", float, off=1.0, noun="a probability", maximum=1, is_swept=True,
    counts_as=("revision",), needs=(THRESHOLD,), not_with=("revision", "compile_config"),
    source="https://huggingface.co/papers/2602.08676",
    model={"has_mask_token": "edits decided tokens, but {model} decides all tokens again in each pass"},
    help="Editing, for models trained for it: replace decided tokens of the open block where the model predicts "
    "another with more than this probability. 1 replaces nothing. Needs a commit rule with a threshold.")
add_setting("max_post_steps", "revision", int, default=16, maximum=256, is_swept=True,
    help="With `editing_threshold`: passes that look for edits after the last mask of a block is decided. The block "
    "is left earlier if a pass finds no edit.")
# fmt: on
