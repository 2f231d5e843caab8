# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The metrics of `evaluate`: they load from the package without a network, and their examples run."""

import doctest
import importlib
import re

import evaluate
import pytest

from hf_dparallel.evaluation import metrics

from ..pages import ROOT, python_blocks, run_blocks


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    """`evaluate` looks for its modules on the Hub if it does not find them here."""

    def refuse(*args, **kwargs):
        raise AssertionError("a request was made")

    monkeypatch.setattr("requests.sessions.Session.request", refuse)
    monkeypatch.setattr("httpx.Client.request", refuse)


def run_example(text: str) -> None:
    """Runs the lines after `>>>`, in a fence of Markdown or not."""
    example = doctest.DocTestParser().get_doctest(re.sub("^ *```.*$", "", text, flags=re.MULTILINE), {}, "x", None, 0)
    assert example.examples
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example)
    assert result.failed == 0


@pytest.mark.parametrize("name", metrics.METRICS)
def test_examples_of_the_metrics_run(name):
    module = metrics.load(name)
    assert isinstance(module, evaluate.Metric) and module.name == name
    assert module.description and module.citation
    run_example(module.inputs_description)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("evaluation.aup", "accuracy_under_parallelism"),
        ("evaluation.cost", "count_answer_tokens"),
        ("evaluation.cost", "decoding_efficiency"),
        ("evaluation.math_answers", "math_answers_correct"),
        ("evaluation.metrics", "load"),
        ("sandbox.programs", "run_programs"),
    ],
)
def test_examples_of_the_functions_run(module, name):
    run_example(getattr(importlib.import_module(f"hf_dparallel.{module}"), name).__doc__)


def test_unknown_names_are_refused_before_anything_is_looked_up():
    with pytest.raises(ValueError, match="must be one of aup, .*, pass_at_1, got 'f1'"):
        metrics.load("f1")


def test_programs_are_run_only_if_that_is_asked_for():
    module = metrics.load("pass_at_1")
    for answer in ({}, {"allow_code_execution": "yes"}):
        with pytest.raises(ValueError, match="pass `allow_code_execution=True`"):
            module.compute(predictions=["pass"], references=["pass"], **answer)


def test_pass_at_1_joins_programs_and_tests():
    figures = metrics.load("pass_at_1").compute(
        predictions=["def f(x):\n    return x + 1", "def f(x):\n    return x", "import sys\nsys.exit(0)", "f = 1 +"],
        references=["assert f(1) == 2"] * 4,
        allow_code_execution=True,
        num_workers=2,
        timeout_s=5,
        max_memory_mb=512,
    )
    assert figures == {"pass_at_1": 0.25}


def test_the_page_prints_what_it_says(capsys):
    page = ROOT / "docs" / "metrics.md"
    run_blocks(page)
    said = re.findall("^# (.*)$", "\n".join(python_blocks(page)), flags=re.MULTILINE)
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == said
