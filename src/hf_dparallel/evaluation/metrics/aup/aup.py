# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Accuracy under parallelism (AUP), as a module of `evaluate`."""

import datasets
import evaluate

from hf_dparallel.evaluation.aup import accuracy_under_parallelism


_DESCRIPTION = (
    "Accuracy under parallelism: the weighted area under the curve of accuracy over tokens per forward pass."
)
_CITATION = """@article{qian2026d3llm,
  title = {d3LLM: Ultra-Fast Diffusion LLM using Pseudo-Trajectory Distillation},
  author = {Yu-Yang Qian and Junda Su and Lanxiang Hu and Peiyuan Zhang and Zhijie Deng and Peng Zhao and Hao Zhang},
  journal = {arXiv preprint arXiv:2601.07568},
  year = {2026}
}"""
_INPUTS = r"""
Args:
    tokens_per_forward (`list[float]`): of each setting of the method, without padding.
    accuracy (`list[float]`): of each setting, in percent.
    max_accuracy (`float`, *optional*): the best of all methods on the task, in percent; by default that of this one.
    alpha (`float`, defaults to 3.0): how strongly a loss of accuracy is punished.
    max_drop (`float`, defaults to 5.0): percentage points below the slowest setting at which others are left out.
Returns:
    `aup` (`float`).
Example:

    >>> from hf_dparallel.evaluation import metrics
    >>> aup = metrics.load("aup")
    >>> aup.compute(tokens_per_forward=[1.0, 3.0], accuracy=[80.0, 80.0])
    {'aup': 240.0}
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _INPUTS)
class AccuracyUnderParallelism(evaluate.Metric):
    def _info(self):
        number = datasets.Value("float64")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"tokens_per_forward": number, "accuracy": number}),
        )

    def _compute(self, tokens_per_forward, accuracy, max_accuracy=None, alpha=3.0, max_drop=5.0):
        value = accuracy_under_parallelism(
            tokens_per_forward, accuracy, max_accuracy=max_accuracy, alpha=alpha, max_drop=max_drop
        )
        return {"aup": value}
