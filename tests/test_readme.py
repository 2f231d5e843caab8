# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Every Python block of the README, the quickstart and docs/inspect.md runs as it stands, on the bundled teacher."""

import functools
import re
from itertools import islice
from pathlib import Path

import datasets
import pytest

import hf_dparallel
from hf_dparallel.demo.word_problems import generate_word_problems


ROOT = Path(__file__).parents[1]
TEACHER = Path(hf_dparallel.__file__).parent / "demo" / "teacher"
LOCAL_PATHS = {"GSAI-ML/LLaDA-8B-Instruct": TEACHER.as_posix()}

_PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def python_blocks(path: Path) -> list[str]:
    return _PYTHON_BLOCK.findall(path.read_text(encoding="utf-8"))


def run_blocks(path: Path) -> dict:
    """Runs the blocks of a page one after the other in one namespace, which it returns."""
    namespace: dict = {"__name__": "__main__"}
    for index, source in enumerate(python_blocks(path), start=1):
        for hub_id, local_path in LOCAL_PATHS.items():
            source = source.replace(hub_id, local_path)
        exec(compile(source, f"{path.name}, block {index}", "exec"), namespace)
    return namespace


def word_problems_as_gsm8k(*args, **kwargs) -> datasets.Dataset:
    """Stands for `load_dataset("openai/gsm8k", ...)`: the same columns, in the language of the bundled teacher."""
    problems = islice(generate_word_problems(seed=0, split="train"), 4)
    rows = [{"question": p.question, "answer": f"{p.solution}\n#### {p.answer}"} for p in problems]
    return datasets.Dataset.from_list(rows)


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "load_dataset", word_problems_as_gsm8k)


def test_readme_decodes_trains_and_loads_the_adapter(tmp_path, capsys):
    names = run_blocks(ROOT / "README.md")

    assert "forward passes" in capsys.readouterr().out
    assert 0 < len(names["trajectories"]) <= 4
    assert (tmp_path / "llada-dparallel" / "adapter_model.safetensors").is_file()
    assert names["sequences"].shape == names["out"].sequences.shape


def test_quickstart_decodes_a_batch(capsys):
    names = run_blocks(ROOT / "docs" / "quickstart.md")

    assert names["out"].nfe.shape == (2,)
    assert names["sequences"].equal(names["out"].sequences)
    assert capsys.readouterr().out.count("tokens per pass") == 2


def test_inspect_writes_a_page_and_figures(tmp_path):
    names = run_blocks(ROOT / "docs" / "inspect.md")

    assert [trace.nfe for trace in names["traces"]] == [int(out.nfe) for out in names["decodes"].values()]
    assert "One prompt, two recipes" in (tmp_path / "decode.html").read_text()
    assert len(list(tmp_path.glob("*.png"))) == 4


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_pages_use_public_names_only(page):
    for source in python_blocks(ROOT / page):
        imported = re.findall(r"^from hf_dparallel(\S*) import (.+)$", source, flags=re.MULTILINE)
        assert all(submodule == "" for submodule, _ in imported)
        for _, names in imported:
            assert set(names.split(", ")) <= set(hf_dparallel.__all__)


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_documented_python_compiles(page):
    for source in python_blocks(ROOT / "docs" / page):
        compile(source, page, "exec")


def test_variants_of_the_training_are_settings_that_exist(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = python_blocks(ROOT / "docs" / "variants.md")
    assert len(blocks) == 7
    for source in blocks:
        exec(source, {"CertaintyForcingConfig": functools.partial(hf_dparallel.CertaintyForcingConfig, use_cpu=True)})
