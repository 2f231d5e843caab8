# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Files of results, and tables that no text in them can break."""

import pytest

from hf_dparallel.reports import escape_markdown, markdown_table, read_report, write_json, write_report


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
