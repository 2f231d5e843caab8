# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The releases that the package was run with, and what is said where another one is installed."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from hf_dparallel import _releases


ROOT = Path(__file__).parents[1]
TABLE = runpy.run_path(str(ROOT / "scripts" / "releases" / "table.py"))


def rows() -> dict[str, dict[str, str]]:
    """Returns the table of the page, by row and column."""
    lines = (ROOT / "docs" / "releases.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    names = [*TABLE["COLUMNS"], "passes"]
    return {row[0]: dict(zip(names, row[1:], strict=True)) for row in cells[1:]}


def test_all_checks_passed_with_the_lower_bounds_and_the_newest_releases():
    table = rows()
    assert set(table) == set(TABLE["ROWS"])
    for row in table.values():
        assert row["passes"] == "first answer, LoRA, 2 steps, exact, server"
    bounds = dict(pinned.split("==") for pinned in TABLE["lower_bounds"]())
    for name, bound in bounds.items():
        if name in TABLE["COLUMNS"]:
            assert re.fullmatch(rf"{re.escape(bound)}(\.0)*", table["lowest"][name]), name
    assert table["lowest"]["transformers"] == _releases.OLDEST
    assert table["newest"]["transformers"] == _releases.NEWEST
    assert {row["python"].rpartition(".")[0] for row in table.values()} == {"3.11", "3.12", "3.13"}


def test_no_release_of_version_5_is_excluded():
    (requirement,) = re.findall(r'"(transformers>[^"]*)"', (ROOT / "setup.py").read_text(encoding="utf-8"))
    assert requirement == f"transformers>={_releases.OLDEST},<6"


def test_a_name_that_transformers_lacks_names_the_releases_to_take():
    with pytest.raises(ImportError, match=r"Install transformers>=5\.16\.1,<=.*slice_of_nothing"):
        with _releases.named_releases():
            from transformers.modeling_utils import slice_of_nothing
    with pytest.raises(ImportError, match="^cannot import name"):
        with _releases.named_releases():
            from json import slice_of_nothing  # noqa: F401


def test_the_package_says_it_where_it_is_imported():
    program = """
import transformers.core_model_loading, transformers.modeling_utils
del transformers.core_model_loading.ConversionOps
import hf_dparallel
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "ImportError: hf-dparallel was run with transformers 5.16.1 to" in done.stderr.splitlines()[-1]


def test_a_row_is_replaced(tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    page.write_text("| lowest | old |\n| newest | kept |\n", encoding="utf-8")
    write_row = TABLE["write_row"]
    monkeypatch.setitem(write_row.__globals__, "PAGE", page)
    write_row("lowest", {"python": "3.11"})
    assert page.read_text(encoding="utf-8") == "| lowest | 3.11 |\n| newest | kept |\n"
    with pytest.raises(SystemExit, match="one row 'vLLM', it has 0"):
        write_row("vLLM", {})
