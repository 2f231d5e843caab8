# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Fraction of programs that pass their tests, as a module of `evaluate`."""

from datasets import Value

from hf_dparallel.evaluation.metrics.factory import metric
from hf_dparallel.sandbox.programs import run_programs


_CITATION = """@article{chen2021codex,
  title = {Evaluating Large Language Models Trained on Code},
  author = {Mark Chen and others},
  journal = {arXiv preprint arXiv:2107.03374},
  year = {2021}
}"""


@metric(_CITATION, predictions=Value("string"), references=Value("string"))
def pass_at_1(predictions, references, allow_code_execution=False, **options):
    """The fraction of programs that pass their tests, each run in a sandbox of its own.

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
