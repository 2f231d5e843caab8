# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The figures of the bundled teacher, and scripts under benchmarks/."""

import copy
import json
import runpy
from pathlib import Path

import pytest


BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
EXPECTED = sorted((BENCHMARKS / "expected").glob("*.json"))


@pytest.fixture(scope="module")
def regression() -> dict:
    return runpy.run_path(str(BENCHMARKS / "regression.py"))


@pytest.mark.parametrize("path", EXPECTED, ids=lambda path: path.stem)
def test_the_figures_of_the_bundled_teacher_still_come_out(regression, path):
    expected = json.loads(path.read_text())
    assert regression["deviations"](expected, regression["measure"](expected)) == []


@pytest.mark.parametrize("path", EXPECTED, ids=lambda path: path.stem)
def test_every_figure_that_is_off_is_named(regression, path):
    expected = json.loads(path.read_text())
    measured = [copy.deepcopy(row["figures"]) for row in expected["rows"]]
    assert regression["deviations"](expected, measured) == []
    for row, figures in zip(expected["rows"], measured, strict=True):
        for name, tolerance in expected["tolerances"].items():
            for wrong in (row["figures"][name] + 1.1 * tolerance, float("nan")):
                figures[name], kept = wrong, figures[name]
                (found,) = regression["deviations"](expected, measured)
                assert found.startswith(f"{name} with {row['recipe']} is {wrong}, expected {kept} ± {tolerance}")
                figures[name] = kept
