# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Accuracy of answers to mathematical problems, as a module of `evaluate`."""

from datasets import Value

from hf_dparallel.evaluation.math_answers import math_answers_correct
from hf_dparallel.evaluation.metrics.factory import metric


_CITATION = """@software{kydlicek2025mathverify,
  title = {Math-Verify: Math Verification Library},
  author = {Hynek Kydlicek},
  url = {https://github.com/huggingface/math-verify},
  year = {2025}
}"""


@metric(_CITATION, predictions=Value("string"), references=Value("string"))
def math_accuracy(predictions, references):
    r"""The fraction of answers that equal the reference as mathematics, by math-verify.

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
