# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""examples/notebooks: their cells run from top to bottom, with small numbers here and as they stand in a kernel."""

import json
import os
import re
from pathlib import Path

import pytest


NOTEBOOKS = Path(__file__).parents[1] / "examples" / "notebooks"
# What is run here instead of the cells tagged "parameters".
SMALL = {
    "decode_and_calibrate": {"NUM_QUESTIONS": 2},
    "distil_on_your_own_data": {"NUM_QUESTIONS": 4, "NUM_STEPS": 1, "NUM_HELD_OUT": 1},
    "publish_and_use": {"USER": "user"},
}


def read(name: str) -> dict:
    return json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))


def code_cells(name: str) -> list[dict]:
    return [cell for cell in read(name)["cells"] if cell["cell_type"] == "code"]


def run_cells(name: str) -> dict:
    """Runs the cells in one namespace, which it returns."""
    names: dict = {"__name__": "__main__"}
    for index, cell in enumerate(code_cells(name), start=1):
        exec(compile("".join(cell["source"]), f"{name}, cell {index}", "exec"), names)
        if "parameters" in cell["metadata"].get("tags", []):
            assert SMALL[name].keys() <= names.keys()
            names |= SMALL[name]
    return names


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_every_notebook_is_run():
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == set(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_outputs_are_kept(name):
    """`KEEP_OUTPUTS=1 pytest tests/test_notebooks.py -m slow` makes them anew."""
    outputs = json.dumps([cell["outputs"] for cell in code_cells(name)])
    assert "passes" in outputs and len(outputs) < 20_000
    assert not re.search(r"127\.0\.0\.1|/tmp|/home|site-packages|stderr", outputs)


def test_decode_and_calibrate(capsys):
    names = run_cells("decode_and_calibrate")
    printed = capsys.readouterr().out
    assert printed.count("tokens per pass") == 3 and "Confirmed: " in printed
    assert [trial.settings for trial in names["trials"]][0] == {"entropy_threshold": 0.1}


def test_distil_on_your_own_data(capsys, tmp_path):
    names = run_cells("distil_on_your_own_data")
    assert "After: " in capsys.readouterr().out and 0 < len(names["kept"]) <= 4
    assert names["student"].active_adapters() == ["default"]
    assert (tmp_path / "my-student" / "generation_config.json").is_file()


def test_publish_and_use(hub, capsys):
    names = run_cells("publish_and_use")
    published = hub.repository("user/word-problems-dparallel").files()
    assert published.keys() == names["files"].keys() >= {"confidence_maps.png", "adapter_model.safetensors"}
    assert published["README.md"] == names["files"]["README.md"]
    shown = [line for cell in code_cells("publish_and_use") for out in cell["outputs"] for line in out.get("text", "")]
    assert names["files"]["README.md"].decode().replace("user/word", "your-name/word") in "".join(shown)
    assert names["out"].sequences.shape[1] > names["inputs"]["input_ids"].shape[1]
    assert f"{names['example']['nfe']} forward passes" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_in_a_kernel(name, hub, monkeypatch, tmp_path):
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_TOKEN", "hf_owner")
    monkeypatch.setenv("HF_HUB_CACHE", os.environ["HF_HUB_CACHE"] + "-kernel")
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        cell.source = cell.source.replace('"your-name"', '"user"')
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": tmp_path}}).execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    # A progress bar on the other stream ends without a newline.
    printed = "".join(out.text for out in outputs if out.get("name") == "stdout")
    if name == "distil_on_your_own_data":
        before, after = (line for line in printed.splitlines() if line.startswith(("Before: ", "After: ")))
        assert float(after.split()[1]) < 0.8 * float(before.split()[1])
    if name == "publish_and_use":
        assert "user/word-problems-dparallel" in printed and "forward passes" in printed
    if os.environ.get("KEEP_OUTPUTS"):
        keep_outputs(name, notebook, hub.address)


def keep_outputs(name: str, notebook: dict, hub_url: str) -> None:
    """Stores what a reader would see: without bars and warnings, and as if on the Hub."""
    kept = read(name)
    for cell, executed in zip(kept["cells"], notebook["cells"], strict=True):
        if cell["cell_type"] == "code":
            seen = [out for out in executed["outputs"] if out.get("name") != "stderr"]
            text = json.dumps(seen).replace(hub_url, "https://huggingface.co").replace("user/word", "your-name/word")
            cell["outputs"], cell["execution_count"] = json.loads(text), executed["execution_count"]
    (NOTEBOOKS / f"{name}.ipynb").write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
