# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Accuracy under parallelism (AUP), as a module of `evaluate`."""

from datasets import Value

from hf_dparallel.evaluation.aup import accuracy_under_parallelism
from hf_dparallel.evaluation.metrics.factory import D3LLM_CITATION, metric


@metric(D3LLM_CITATION, tokens_per_forward=Value("float64"), accuracy=Value("float64"))
def aup(tokens_per_forward, accuracy, **options):
    """Accuracy under parallelism: the weighted area under the curve of accuracy over tokens per forward pass.

    Args:
        tokens_per_forward (`list[float]`): for each setting of the method, without padding.
        accuracy (`list[float]`): for each setting, in percent.
        **options: `max_accuracy`, `alpha` and `max_drop` of
            `hf_dparallel.evaluation.aup.accuracy_under_parallelism`.
    Returns:
        `aup` (`float`).
    Example:

        >>> from hf_dparallel.evaluation import metrics
        >>> aup = metrics.load("aup")
        >>> aup.compute(tokens_per_forward=[1.0, 3.0], accuracy=[80.0, 80.0])
        {'aup': 240.0}
    """
    return {"aup": accuracy_under_parallelism(tokens_per_forward, accuracy, **options)}
