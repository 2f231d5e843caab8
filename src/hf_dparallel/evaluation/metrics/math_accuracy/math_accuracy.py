# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Accuracy of answers to mathematical problems, as a module of `evaluate`."""

import datasets
import evaluate

from hf_dparallel.evaluation.math_answers import math_answers_correct


_DESCRIPTION = "The fraction of answers that equal the reference as mathematics, by math-verify."
_CITATION = """@software{kydlicek2025mathverify,
  title = {Math-Verify: Math Verification Library},
  author = {Hynek Kydlicek},
  url = {https://github.com/huggingface/math-verify},
  year = {2025}
}"""
_INPUTS = r"""
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


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _INPUTS)
class MathAccuracy(evaluate.Metric):
    def _info(self):
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": text, "references": text}),
        )

    def _compute(self, predictions, references):
        correct = math_answers_correct(predictions, references)
        return {"accuracy": sum(correct) / len(correct)}
