# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Functions as modules of `evaluate`."""

import inspect
from collections.abc import Callable
from typing import Any

import datasets
import evaluate


D3LLM_CITATION = """@article{qian2026d3llm,
  title = {d3LLM: Ultra-Fast Diffusion LLM using Pseudo-Trajectory Distillation},
  author = {Yu-Yang Qian and Junda Su and Lanxiang Hu and Peiyuan Zhang and Zhijie Deng and Peng Zhao and Hao Zhang},
  journal = {arXiv preprint arXiv:2601.07568},
  year = {2026}
}"""


def metric(citation: str, **features: Any) -> Callable[[Callable[..., dict[str, float]]], type[evaluate.Metric]]:
    """Makes a function a metric of `evaluate`, described by its docstring and with the BibTeX of its source.

    `features` say what `datasets` stores the arguments as that have a value for each answer.
    """

    def make(function: Callable[..., dict[str, float]]) -> type[evaluate.Metric]:
        description, _, inputs = (inspect.getdoc(function) or "").partition("\n")

        class FunctionMetric(evaluate.Metric):
            __doc__ = function.__doc__

            def _info(self) -> evaluate.MetricInfo:
                return evaluate.MetricInfo(
                    description=description,
                    citation=citation,
                    inputs_description=inputs,
                    features=datasets.Features(features),
                )

            def _compute(self, **inputs: Any) -> dict[str, float]:
                return function(**inputs)

        return FunctionMetric

    return make
