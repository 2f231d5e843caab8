# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The rule of dParallel: all tokens of little entropy."""

from ..commit_rules import Prediction, Tensor, commit_rule, most_certain


@commit_rule("entropy_threshold", float, noun="a number of nats", source="https://huggingface.co/papers/2509.26488",
    help="Commit the tokens whose prediction has at most this entropy, in nats.")  # fmt: skip
def commit_by_entropy(prediction: Prediction, masked: Tensor, threshold: float) -> Tensor:
    is_certain = prediction.entropy <= threshold
    return masked & (is_certain | most_certain(-prediction.entropy, masked))
