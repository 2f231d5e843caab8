# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Rows of a report, from what was measured."""

import pytest

from hf_dparallel.evaluation.cost import DecodingCost
from hf_dparallel.evaluation.decoding import Evaluation
from hf_dparallel.evaluation.rows import aup_of, make_rows
from hf_dparallel.reports import results_table


MEASURED = {
    "Original": {"accuracy": 0.95, "nfe": 64.0, "tokens_per_forward": 0.8, "latency_s": 0.2, "num_prompts": 5},
    "Student": {"accuracy": 0.94, "nfe": 8.0, "tokens_per_forward": 6.4, "latency_s": 0.025, "num_prompts": 5},
}


def test_rows_and_table():
    rows = make_rows(MEASURED)
    assert [row["speedup"] for row in rows] == [1.0, 8.0]
    assert list(rows[0]) == ["method", "accuracy", "nfe", "tokens_per_forward", "latency_s", "speedup"]
    assert results_table(rows).splitlines() == [
        "| Method   | Passes | Tokens per pass | Latency | Speed-up | Accuracy |",
        "| -------- | -----: | --------------: | ------: | -------: | -------: |",
        "| Original |   64.0 |            0.80 |  200 ms |     1.0x |    95.0% |",
        "| Student  |    8.0 |            6.40 |   25 ms |     8.0x |    94.0% |",
    ]


def test_metrics_by_hand():
    costs = [DecodingCost(2, 8, 8), DecodingCost(4, 8, 7), DecodingCost(4, 4, 3), DecodingCost(8, 8, 8)]
    row = Evaluation([True, True, False, True], costs, 8.0).metrics()
    assert (row["accuracy"], row["nfe"], row["latency_s"]) == (0.75, 4.5, 2.0)
    assert row["answer_tokens_per_forward"] == 26 / 18 and row["tokens_per_second"] == 26 / 8
    assert row["tokens_per_forward"] == (8 / 2 + 8 / 4 + 4 / 4 + 8 / 8) / 4


def test_aup_of_each_curve():
    rows = [
        {"curve": "a", "accuracy": 0.8, "answer_tokens_per_forward": 1.0},
        {"curve": "a", "accuracy": 0.8, "answer_tokens_per_forward": 3.0},
        {"curve": "a", "accuracy": 0.7, "answer_tokens_per_forward": 3.0},  # decodes alike, and is less accurate
        {"curve": "b", "accuracy": 0.5, "answer_tokens_per_forward": 2.0},
        {"curve": "b", "accuracy": 0.0, "answer_tokens_per_forward": 0.0},  # empty answers
        {"curve": "c", "accuracy": 0.0, "answer_tokens_per_forward": 0.0},
    ]
    assert aup_of(rows) == {"a": pytest.approx(3 * 80), "b": pytest.approx(2 * 50)}
