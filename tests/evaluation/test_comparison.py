# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Reports side by side: what differs, and what cannot be compared."""

import json

import pytest

from hf_dparallel.evaluation.comparison import compare_reports, read_comparable_report, unique_names
from hf_dparallel.evaluation.cost import DecodingCost
from hf_dparallel.evaluation.decoding import Evaluation
from hf_dparallel.evaluation.rows import curves_of, make_rows, metrics_with_intervals, write_evaluation
from hf_dparallel.reports import results_table


def make_report(seconds: float = 8.0, is_correct=(True, True, False, True), **changes) -> dict:
    costs = [DecodingCost(2, 8, 8, 8), DecodingCost(4, 8, 7, 8), DecodingCost(4, 4, 3, 8), DecodingCost(8, 8, 8, 8)]
    answers = Evaluation(list(is_correct), costs, seconds)
    measured = {
        "entropy_threshold 0.5": {**metrics_with_intervals(answers), "curve": "entropy_threshold", "recipe": {}},
        "entropy_threshold 0.9": {**metrics_with_intervals(answers), "curve": "entropy_threshold", "recipe": {}},
    }
    conditions = {"data": "abc", "num_prompts": 4, "reward": "numeric", "max_new_tokens": 64}
    hardware = {"device": "A", "dtype": "float32", "batch_size": 4}
    return {
        "name": "demo",
        "conditions": {name: changes.get(name, value) for name, value in conditions.items()},
        "hardware": {name: changes.get(name, value) for name, value in hardware.items()},
        "rows": make_rows(measured),
    }


def test_differences_are_taken_prompt_by_prompt():
    other = make_report(seconds=4.0, is_correct=(False, True, True, True))
    rows = compare_reports({"a": make_report(), "b": other})["rows"]
    assert [row["method"] for row in rows[1:3]] == ["a: entropy_threshold 0.9", "b: entropy_threshold 0.5"]
    assert list(curves_of(rows)) == ["a: entropy_threshold", "b: entropy_threshold"]
    # A row differs from itself by nothing; another that agrees on four prompts may still differ on others.
    assert rows[0]["accuracy_difference_interval"] == [0.0, 0.0]
    assert rows[1]["accuracy_difference"] == 0.0 and rows[1]["accuracy_difference_interval"][1] > 0.4
    # One lost and one gained: no difference of the means, yet no certainty either.
    assert rows[2]["accuracy_difference"] == 0.0
    assert rows[2]["accuracy_difference_interval"][0] < -0.3 and rows[2]["accuracy_difference_interval"][1] > 0.3
    assert [row["speedup"] for row in rows] == [1.0, 1.0, 2.0, 2.0]


@pytest.mark.parametrize(
    "change", [{"data": "xyz"}, {"num_prompts": 5}, {"reward": "math"}, {"max_new_tokens": 128}], ids=str
)
def test_what_cannot_be_compared_is_refused(change):
    ((name, value),) = change.items()
    with pytest.raises(
        ValueError, match=f"a and b cannot be compared: `{name}` is .* in one and {value!r} in the oth"
    ):
        compare_reports({"a": make_report(), "b": make_report(**change)})


@pytest.mark.parametrize("change", [{"device": "B"}, {"dtype": "bfloat16"}, {"batch_size": 1}], ids=str)
def test_latencies_of_other_hardware_are_left_out(change):
    compared = compare_reports({"a": make_report(), "b": make_report(**change)})
    assert compared["differing_hardware"] == list(change)
    assert not any({"latency_s", "tokens_per_second", "speedup"} & set(row) for row in compared["rows"])
    assert "Latency" not in results_table(compared["rows"])


def test_files_of_an_evaluation(tmp_path):
    report = make_report()
    write_evaluation(report, tmp_path / "new" / "a", ["A note."])
    folder = tmp_path / "new" / "a"
    assert read_comparable_report(folder) == read_comparable_report(folder / "report.json") == report
    text = (folder / "report.md").read_text()
    assert "| entropy_threshold 0.5 |    4.5 |            2.00 | 2000 ms |     1.0x | 75.0% [30.1, 95.4] |" in text
    assert "A note." in text and "curves.png" in text
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("{}", "is no report that can be compared: it lacks name, conditions, hardware, rows"),
        (
            json.dumps({"name": "a", "rows": []}),
            "it lacks conditions, hardware, rows. `hf-dparallel evaluate --dataset",
        ),
        (json.dumps({**make_report(), "rows": [{"method": "a"}]}), "it lacks the results of each answer"),
    ],
)
def test_other_files_cannot_be_compared(tmp_path, content, message):
    (tmp_path / "report.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_comparable_report(tmp_path)


def test_names_differ():
    assert unique_names(["demo", "student", "demo"]) == ["demo (1)", "student", "demo (3)"]
    assert len(set(unique_names(["a", "a", "a (1)"]))) == 3
