# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Fraction of programs that pass their tests, as a module of `evaluate`."""

import datasets
import evaluate

from hf_dparallel.sandbox.runner import run_programs


_DESCRIPTION = "The fraction of programs that pass their tests, each run in a sandbox of its own."
_CITATION = """@article{chen2021codex,
  title = {Evaluating Large Language Models Trained on Code},
  author = {Mark Chen and others},
  journal = {arXiv preprint arXiv:2107.03374},
  year = {2021}
}"""
_INPUTS = r"""
Args:
    predictions (`list[str]`): one program for each problem.
    references (`list[str]`): the tests of each problem, which are appended to the program.
    allow_code_execution (`bool`): has to be `True`; else nothing is run.
    timeout_s (`float`, defaults to 10.0): seconds that a program with its tests may take.
    max_memory_mb (`int`, defaults to 1024): memory that it may take.
    num_workers (`int`, defaults to 1): programs that run side by side.
Returns:
    `pass_at_1` (`float`): between 0 and 1.
Example:

    >>> from hf_dparallel.evaluation import metrics
    >>> pass_at_1 = metrics.load("pass_at_1")
    >>> programs = ["def add(a, b): return a + b", "def add(a, b): return a * b"]
    >>> pass_at_1.compute(predictions=programs, references=["assert add(2, 3) == 5"] * 2, allow_code_execution=True)
    {'pass_at_1': 0.5}
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _INPUTS)
class PassAt1(evaluate.Metric):
    def _info(self):
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": text, "references": text}),
        )

    def _compute(
        self,
        predictions,
        references,
        allow_code_execution=False,
        timeout_s=10.0,
        max_memory_mb=1024,
        num_workers=1,
    ):
        if allow_code_execution is not True:
            raise ValueError(
                "`pass_at_1` runs programs that nobody has read. If that is what you want, pass "
                "`allow_code_execution=True`: each runs in a sandbox (docs/metrics.md says what it guarantees)."
            )
        programs = [f"{program}\n{tests}" for program, tests in zip(predictions, references, strict=True)]
        results = run_programs(programs, timeout_s=timeout_s, max_memory_mb=max_memory_mb, num_workers=num_workers)
        return {"pass_at_1": sum(result.passed for result in results) / len(results)}
