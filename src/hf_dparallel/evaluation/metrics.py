# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The metrics of this package, as metrics of `evaluate`."""

import inspect
from collections.abc import Callable
from typing import Any

import evaluate
from datasets import Features, Sequence, Value

from ..sandbox.programs import run_programs
from . import cost
from .aup import accuracy_under_parallelism
from .math_answers import math_answers_correct


_D3LLM = """@article{qian2026d3llm,
  title = {d3LLM: Ultra-Fast Diffusion LLM using Pseudo-Trajectory Distillation},
  author = {Yu-Yang Qian and Junda Su and Lanxiang Hu and Peiyuan Zhang and Zhijie Deng and Peng Zhao and Hao Zhang},
  journal = {arXiv preprint arXiv:2601.07568},
  year = {2026}
}"""
_MATH_VERIFY = """@software{kydlicek2025mathverify,
  title = {Math-Verify: Math Verification Library},
  author = {Hynek Kydlicek},
  url = {https://github.com/huggingface/math-verify},
  year = {2025}
}"""
_CODEX = """@article{chen2021codex,
  title = {Evaluating Large Language Models Trained on Code},
  author = {Mark Chen and others},
  journal = {arXiv preprint arXiv:2107.03374},
  year = {2021}
}"""
_Function = Callable[..., dict[str, float]]
# By the names of the functions that compute them.
METRICS: dict[str, type[evaluate.Metric]] = {}


def load(name: str, **kwargs) -> evaluate.Metric:
    """Returns one of `METRICS`, as `evaluate.load` does for metrics on the Hub; `kwargs` are those of its class.

    Example:

    ```python
    >>> from hf_dparallel.evaluation import metrics

    >>> metrics.load("math_accuracy").compute(predictions=["It is 7."], references=["7"])
    {'accuracy': 1.0}
    ```
    """
    if name not in METRICS:
        raise ValueError(f"`name` must be one of {', '.join(METRICS)}, got {name!r}.")
    return METRICS[name](**kwargs)


def _metric(citation: str, **features: Any) -> Callable[[_Function], _Function]:
    """Registers a function as a metric of `evaluate`, described by its docstring and with the BibTeX of its source.

    `features` say what `datasets` stores the arguments as that have a value for each answer.
    """

    def register(function: _Function) -> _Function:
        description, _, inputs = (inspect.getdoc(function) or "").partition("\n")

        class FunctionMetric(evaluate.Metric):
            def _info(self) -> evaluate.MetricInfo:
                return evaluate.MetricInfo(
                    description=description,
                    citation=citation,
                    inputs_description=inputs,
                    features=Features(features),
                )

            def _compute(self, **inputs: Any) -> dict[str, float]:
                return function(**inputs)

        # `evaluate` names the metric by its class.
        FunctionMetric.__name__ = function.__name__
        METRICS[function.__name__] = FunctionMetric
        return function

    return register


@_metric(_D3LLM, tokens_per_forward=Value("float64"), accuracy=Value("float64"))
def aup(tokens_per_forward, accuracy, **options):
    """Computes accuracy under parallelism: the weighted area under the curve of accuracy over tokens per pass.

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


@_metric(_D3LLM, predictions=Sequence(Value("int64")), nfe=Value("int64"))
def decoding_efficiency(predictions, nfe, eos_token_id, **options):
    """Computes forward passes per answer, tokens per pass with and without padding, tokens per second, latency.

    Args:
        predictions (`list[list[int]]`): new tokens of each answer, with or without padding.
        nfe (`list[int]`): forward passes of each answer.
        eos_token_id (`int` or `list[int]`): the token, or tokens, that end an answer.
        **options: `max_new_tokens` and `latency_s` of `hf_dparallel.evaluation.cost.decoding_efficiency`.
    Returns:
        What `hf_dparallel.evaluation.cost.decoding_efficiency` returns.
    Example:

        >>> from hf_dparallel.evaluation import metrics
        >>> efficiency = metrics.load("decoding_efficiency")
        >>> efficiency.compute(predictions=[[11, 12, 13, 2], [11, 2, 2, 2]], nfe=[2, 2], eos_token_id=2)
        {'nfe': 2.0, 'num_tokens': 3.0, 'num_answer_tokens': 2.0, 'tokens_per_forward': 1.5,
         'answer_tokens_per_forward': 1.0, 'tokens_per_forward_with_padding': 2.0}
    """
    return cost.decoding_efficiency(predictions, nfe, eos_token_id=eos_token_id, **options)


@_metric(_MATH_VERIFY, predictions=Value("string"), references=Value("string"))
def math_accuracy(predictions, references):
    r"""Computes the fraction of answers that math-verify finds equal to the reference.

    Args:
        predictions (`list[str]`): the whole texts of the answers.
        references (`list[str]`): the right answers, in LaTeX, in `\boxed{}` or after `####`.
    Returns:
        `accuracy` (`float`): between 0 and 1.
    Example:

        >>> from hf_dparallel.evaluation import metrics
        >>> math_accuracy = metrics.load("math_accuracy")
        >>> math_accuracy.compute(predictions=["It is 1/2.", "It is 3."], references=["0.5", "4"])
        {'accuracy': 0.5}
    """
    correct = math_answers_correct(predictions, references)
    return {"accuracy": sum(correct) / len(correct)}


@_metric(_CODEX, predictions=Value("string"), references=Value("string"))
def pass_at_1(predictions, references, allow_code_execution=False, **options):
    """Computes the fraction of programs that pass their tests, each in its own sandbox.

    Args:
        predictions (`list[str]`): one program for each problem.
        references (`list[str]`): the tests of each problem, which run after the program.
        allow_code_execution (`bool`): has to be `True`; else nothing is run.
        **options: `timeout_s`, `max_memory_mb` and `num_workers` of `hf_dparallel.sandbox.programs.run_programs`.
    Returns:
        `pass_at_1` (`float`): between 0 and 1.
    Example:

        >>> from hf_dparallel.evaluation import metrics
        >>> pass_at_1 = metrics.load("pass_at_1")
        >>> programs = ["def add(a, b): return a + b", "def add(a, b): return a * b"]
        >>> tests = ["assert add(2, 3) == 5"] * 2
        >>> pass_at_1.compute(predictions=programs, references=tests, allow_code_execution=True)
        {'pass_at_1': 0.5}
    """
    if allow_code_execution is not True:
        raise ValueError(
            "`pass_at_1` runs programs that nobody has read. If that is what you want, pass "
            "`allow_code_execution=True`: each runs in a sandbox (docs/metrics.md says what it guarantees)."
        )
    results = run_programs(predictions, references, **options)
    return {"pass_at_1": sum(result.passed for result in results) / len(results)}
