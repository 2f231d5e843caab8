# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The rule of soft decoding (DMax): a prefix of sure tokens."""

from ..commit_rules import Prediction, Tensor, commit_rule


@commit_rule("soft_threshold", float, noun="a probability", maximum=1,
    source="https://huggingface.co/papers/2604.08302",
    help="Soft decoding, for models trained for it: commit the masks before the first one below this probability. "
    "Until the block is left, each pass decides all committed tokens again, and sees them mixed with the "
    "mask token.")  # fmt: skip
def commit_prefix(prediction: Prediction, masked: Tensor, threshold: float) -> Tensor:
    # The masks of a row come first, from left to right.
    in_prefix = (prediction.confidence >= threshold).cumprod(dim=-1).bool()
    in_prefix[:, 0] = True
    return masked & in_prefix
