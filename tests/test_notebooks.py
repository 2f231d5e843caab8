# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""examples/notebooks: their cells run from top to bottom in a kernel (slow), and those of one of them here, too."""

import json
import os
import re
from pathlib import Path

import pytest


NOTEBOOKS = Path(__file__).parents[1] / "examples" / "notebooks"
NAMES = ("decode_and_calibrate", "distil_on_your_own_data", "publish_and_use")


def read(name: str) -> dict:
    return json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))


def code_cells(name: str) -> list[dict]:
    return [cell for cell in read(name)["cells"] if cell["cell_type"] == "code"]


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_every_notebook_is_run():
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_kept(name):
    """`KEEP_OUTPUTS=1 pytest tests/test_notebooks.py -m slow` makes them anew."""
    outputs = json.dumps([cell["outputs"] for cell in code_cells(name)])
    assert "passes" in outputs and len(outputs) < 20_000
    assert not re.search(r"127\.0\.0\.1|/tmp|/home|site-packages|stderr", outputs)


def test_publish_and_use(hub, capsys):
    names: dict = {"__name__": "__main__"}
    for cell in code_cells("publish_and_use"):
        exec("".join(cell["source"]).replace('"your-name"', '"user"'), names)
    published = hub.repository("user/word-problems-dparallel").files()
    assert published.keys() == names["files"].keys() >= {"confidence_maps.png", "adapter_model.safetensors"}
    assert published["README.md"] == names["files"]["README.md"]
    shown = [line for cell in code_cells("publish_and_use") for out in cell["outputs"] for line in out.get("text", "")]
    assert names["files"]["README.md"].decode().replace("user/word", "your-name/word") in "".join(shown)
    assert names["out"].sequences.shape[1] > names["inputs"]["input_ids"].shape[1]
    assert f"{names['example']['nfe']} forward passes" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
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
    if name == "decode_and_calibrate":
        assert printed.count("tokens per pass") >= 2 and "Confirmed: " in printed
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
