# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The setting of verified commits."""

from ..settings import THRESHOLD, add_setting


# fmt: off
add_setting("revocation_threshold", "revision", float, off=0.0, noun="a probability", maximum=1, is_swept=True,
    counts_as=("revision",), needs=(THRESHOLD,), not_with=("revision", "compile_config"),
    source="https://huggingface.co/papers/2507.18578",
    model={"has_mask_token": "masks decided tokens again, but {model} has no mask token",
           "takes_visibility": "hides tokens from some places of a pass, which {model} supports at most with "
           '`attn_implementation="sdpa"`'},
    help="Verified commits: predict each decided token of the open block again from all others, and mask it where its "
    "probability is below this. Needs a commit rule with a threshold, which may then be bolder.")
# fmt: on
