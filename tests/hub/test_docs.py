# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Every Python block of docs/hub.md and docs/reference/hub.md runs, against a Hub with the models that they name."""

import json
import shutil

from hf_dparallel import push_model_to_hub

from ..helpers import edit_json
from ..pages import ROOT, run_blocks
from .helpers import BASE, save_adapter


PUBLISHED_BASE = "GSAI-ML/LLaDA-8B-Instruct"


def test_the_page_runs(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hub.repositories[f"models/{PUBLISHED_BASE}"] = hub.repositories[f"models/{BASE}"]
    folder = save_adapter(tmp_path / "llada-dparallel")
    edit_json(folder / "adapter_config.json", base_model_name_or_path=PUBLISHED_BASE)
    shutil.copytree(folder, tmp_path / "code")
    push_model_to_hub("code", "user/llada-code")
    push_model_to_hub(folder, "user/llada-dparallel", revision="v1")
    figures = {"accuracy": 0.5, "nfe": 8.0, "tokens_per_forward": 4.0, "latency_s": 0.1, "num_prompts": 2}
    (tmp_path / "report.json").write_text(json.dumps(figures))

    shutil.copytree(ROOT / "examples" / "space", tmp_path / "examples" / "space")

    run_blocks(ROOT / "docs" / "hub.md")
    run_blocks(ROOT / "docs" / "reference" / "hub.md")

    space = hub.repository("user/llada-dparallel-demo", "spaces").files()
    assert space.keys() == {"README.md", "app.py", "requirements.txt"}
    assert (tmp_path / "llada-merged" / "model.safetensors").is_file()
