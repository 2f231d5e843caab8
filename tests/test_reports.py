# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Files of results, comparisons, and tables that no text in them can break."""

import json

import pytest

from hf_dparallel.evaluation.cost import DecodingCost
from hf_dparallel.evaluation.decoding import Evaluation
from hf_dparallel.reports import (
    aup_of,
    compare_reports,
    curves_of,
    escape_markdown,
    make_rows,
    markdown_table,
    metrics_with_intervals,
    read_comparable_report,
    read_report,
    results_table,
    unique_names,
    write_evaluation,
    write_json,
    write_report,
)


def test_table():
    assert markdown_table(["Name", "Kind", "Number"], [("a", "long", 1.5), ("bcdef", "", 10)], 2).splitlines() == [
        "| Name  | Kind | Number |",
        "| ----- | ---- | -----: |",
        "| a     | long |    1.5 |",
        "| bcdef |      |     10 |",
    ]


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a|b", r"a\|b"),
        # A backslash before it would take the escape away.
        (r"a\|b", r"a\\\|b"),
        ("a\n# Heading\r\n| x |", r"a # Heading \| x \|"),
        ("a\u2028b\x0bc", "a b c"),
        ("[a](javascript:alert(1)) [0, 1]", r"[a]\(javascript:alert(1)) [0, 1]"),
        ("<script>alert(1)</script>", "&lt;script>alert(1)&lt;/script>"),
    ],
)
def test_text_stays_in_its_cell(text, escaped):
    assert escape_markdown(text) == escaped
    table = markdown_table(["Method", "Passes"], [(text, 1)])
    assert len(table.splitlines()) == 3 and table.splitlines()[2].startswith(f"| {escaped.ljust(6)} |")


def test_files(tmp_path):
    report = {"rows": [{"method": "ä", "nfe": 1.5}]}
    write_report(report, tmp_path / "new" / "folder", ["A table.", "A note."])
    assert (
        read_report(tmp_path / "new" / "folder") == read_report(tmp_path / "new" / "folder" / "report.json") == report
    )
    assert (tmp_path / "new" / "folder" / "report.md").read_text() == "A table.\n\nA note.\n"
    write_json(report, tmp_path / "other" / "figures.json")
    assert read_report(tmp_path / "other" / "figures.json") == report


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("\udc80", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "must hold a JSON object, got a list"),
    ],
    ids=["cut", "bytes", "deep", "list"],
)
def test_other_files_are_named(tmp_path, content, message):
    path = tmp_path / "report.json"
    path.write_text(content, errors="surrogateescape")
    with pytest.raises(ValueError, match=f"`{path}` {message}"):
        read_report(tmp_path)


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


def test_metrics_by_hand():
    row = make_report()["rows"][0]
    assert (row["accuracy"], row["nfe"], row["latency_s"]) == (0.75, 4.5, 2.0)
    assert row["answer_tokens_per_forward"] == 26 / 18 and row["tokens_per_second"] == 26 / 8
    assert row["tokens_per_forward"] == (8 / 2 + 8 / 4 + 4 / 4 + 8 / 8) / 4
    assert row["answers"] == {"is_correct": [1, 1, 0, 1], "nfe": [2, 4, 4, 8], "num_tokens": [8, 8, 4, 8]}
    assert row["accuracy_interval"] == pytest.approx([0.3006, 0.9544], abs=1e-4)  # Wilson's, of 3 out of 4
    assert row["nfe_interval"][0] < 4.5 < row["nfe_interval"][1]


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
