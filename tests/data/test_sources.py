# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Datasets by name: files of several formats, and what is wrong with others."""

import pytest
from datasets import Dataset

from hf_dparallel.data.sources import has_one_split, load_rows


def test_files_are_read_by_their_ending(tmp_path):
    rows = ["question\tanswer", "1 5 2\t7", "2 5 3\t8"]
    for name in ("rows.tsv", "rows.txt"):
        (tmp_path / name).write_text("\n".join(rows))
    assert load_rows(str(tmp_path / "rows.txt"))["text"][:] == rows
    assert load_rows(str(tmp_path / "rows.tsv"))["question"][:] == ["1 5 2", "2 5 3"]
    assert has_one_split(str(tmp_path / "rows.txt")) and not has_one_split(str(tmp_path))


def test_compressed_files(tmp_path):
    rows = Dataset.from_dict({"prompt": ["5 6", "7"]})
    rows.to_json(tmp_path / "rows.jsonl.gz", compression="gzip")
    assert load_rows(str(tmp_path / "rows.jsonl.gz"))[:] == rows[:]


def test_a_file_has_one_split(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "5 6"}')
    with pytest.raises(ValueError, match=r"cannot be read: .*Unknown split \"test\". Should be one of"):
        load_rows(str(rows), split="test")


@pytest.mark.parametrize("name", ["bad.json", "bad.parquet", "empty.parquet", "unknown.xlsx"])
def test_files_that_cannot_be_read_are_named(tmp_path, name):
    (tmp_path / name).write_text('{"a": 1}\n{"a"' * ("bad" in name))
    with pytest.raises(ValueError, match=f"{name}` cannot be read: "):
        load_rows(str(tmp_path / name))
