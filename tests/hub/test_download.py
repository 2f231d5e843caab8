# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Loading from the Hub: revisions, no network, and what is not run or read unless asked for."""

import json
from pathlib import Path

import huggingface_hub
import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM

from hf_dparallel import LLaDAForMaskedDiffusion, push_model_to_hub
from hf_dparallel.generation.configuration import recipe_of

from .helpers import BASE, RECIPE, TEACHER, save_adapter
from .server import Repository


INPUT_IDS = torch.arange(10, 20)[None]


def put(hub, repo_id: str, files: dict[str, bytes]) -> None:
    hub.repositories[f"models/{repo_id}"] = Repository(commits={"2" * 40: files}, refs={"main": "2" * 40})


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(INPUT_IDS).logits


def loaded_from(folder: Path):
    model = AutoModelForMaskedLM.from_pretrained(TEACHER)
    model.load_adapter(str(folder))
    return model


@pytest.fixture
def versions(hub, tmp_path):
    """Two versions of an adapter: their folders and commits."""
    folders = [
        save_adapter(tmp_path / "1", seed=1, recipe={**RECIPE, "entropy_threshold": 0.1}),
        save_adapter(tmp_path / "2", seed=2, recipe={**RECIPE, "entropy_threshold": 0.2}),
    ]
    return folders, [push_model_to_hub(folder, "user/student").oid for folder in folders]


def test_a_revision_is_that_of_the_adapter_its_weights_and_its_recipe(hub, versions):
    (first, second), (old, _) = versions
    newest = AutoModelForMaskedLM.from_pretrained("user/student")
    assert torch.equal(logits(newest), logits(loaded_from(second)))
    assert recipe_of(newest).entropy_threshold == 0.2

    pinned = AutoModelForMaskedLM.from_pretrained("user/student", adapter_kwargs={"revision": old})
    assert torch.equal(logits(pinned), logits(loaded_from(first)))
    assert recipe_of(pinned).entropy_threshold == 0.1

    model = AutoModelForMaskedLM.from_pretrained(BASE)
    model.load_adapter("user/student", revision=old)
    assert torch.equal(logits(model), logits(pinned))
    assert recipe_of(model).entropy_threshold == 0.1
    with pytest.raises((OSError, ValueError)):
        model.load_adapter("user/student", "other", revision="f" * 40)


def test_what_has_been_loaded_once_loads_offline(hub, versions, monkeypatch):
    online = AutoModelForMaskedLM.from_pretrained("user/student")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    huggingface_hub.close_session()
    hub.requests.clear()
    offline = AutoModelForMaskedLM.from_pretrained("user/student")
    assert torch.equal(logits(offline), logits(online))
    assert recipe_of(offline).to_dict() == recipe_of(online).to_dict()
    model = AutoModelForMaskedLM.from_pretrained(TEACHER)
    model.load_adapter("user/student")
    assert torch.equal(logits(model), logits(online))
    assert not hub.requests
    with pytest.raises((OSError, ValueError), match="offline mode"):
        model.load_adapter("user/never-loaded", "other")


def test_full_checkpoints_with_code_load_as_our_classes_and_nothing_is_run(hub, golden_dir, tmp_path):
    marker = tmp_path / "was_run"
    folder = golden_dir / "llada" / "model"
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    config = json.loads(files["config.json"])
    config["auto_map"] = {"AutoConfig": "code.C", "AutoModel": "code.M", "AutoModelForCausalLM": "code.M"}
    files["config.json"] = json.dumps(config).encode()
    files["code.py"] = f"open({str(marker)!r}, 'w')\nclass C: pass\nclass M: pass\n".encode()
    put(hub, "other/dparallel-llada", files)
    for auto_class in (AutoModelForMaskedLM, AutoModel):
        model = auto_class.from_pretrained("other/dparallel-llada")
        assert type(model) is LLaDAForMaskedDiffusion
        assert torch.equal(logits(model), logits(AutoModelForMaskedLM.from_pretrained(folder)))
    assert not marker.exists()


def test_pickled_weights_on_the_hub_are_refused(hub, adapter):
    push_model_to_hub(adapter, "user/student")
    config = hub.repository("user/student").files()["adapter_config.json"]
    put(hub, "other/adapter", {"adapter_config.json": config, "adapter_model.bin": b"pickle"})
    with pytest.raises(OSError, match=r"no(t appear to have a)? file named adapter_model\.safetensors"):
        AutoModelForMaskedLM.from_pretrained("other/adapter")
    put(hub, "other/model", {"config.json": (TEACHER / "config.json").read_bytes(), "pytorch_model.bin": b"pickle"})
    with pytest.raises(OSError, match="Can't load the model for 'other/model'"):
        AutoModelForMaskedLM.from_pretrained("other/model")
    assert not any(request.startswith("GET") and request.endswith(".bin") for request in hub.requests)
