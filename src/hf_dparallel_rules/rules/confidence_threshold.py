# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The rule of Fast-dLLM: all tokens above a probability."""

from ..commit_rules import Prediction, Tensor, commit_rule, most_certain


@commit_rule("confidence_threshold", float, noun="a probability", above_minimum=True, maximum=1,
    source="https://huggingface.co/papers/2505.22618",
    help="Commit the tokens of at least this probability.")  # fmt: skip
def commit_by_confidence(prediction: Prediction, masked: Tensor, threshold: float) -> Tensor:
    return masked & ((prediction.confidence >= threshold) | most_certain(prediction.confidence, masked))
