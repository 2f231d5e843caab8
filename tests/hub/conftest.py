# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A Hub to push to, and a folder with an adapter on the bundled teacher, which lies on it."""

import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForMaskedLM, BertConfig, PreTrainedModel

import hf_dparallel
from hf_dparallel import DiffusionGenerationConfig

from .server import Repository, running_hub


TEACHER = Path(hf_dparallel.demo.TEACHER)
BASE = "user/teacher"
RECIPE = {"max_new_tokens": 32, "block_length": 16, "entropy_threshold": 0.4}


@pytest.fixture
def hub(monkeypatch):
    """A Hub on which the bundled teacher lies, for a user who is logged in."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_owner")
    # Retries wait for as long as the server says, and otherwise for moments.
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    with running_hub() as hub:
        files = {path.name: path.read_bytes() for path in TEACHER.iterdir()}
        hub.repositories[f"models/{BASE}"] = Repository(commits={"1" * 40: files}, refs={"main": "1" * 40})
        yield hub
        # Its connections belong to this server.
        huggingface_hub.close_session()
    shutil.rmtree(huggingface_hub.constants.HF_HUB_CACHE, ignore_errors=True)


def edit_json(path: Path, **settings) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def save_adapter(folder: Path, seed: int = 0, recipe: dict | None = RECIPE) -> Path:
    """An adapter on the teacher with random weights, as PEFT saves it, and its recipe."""
    model = AutoModelForMaskedLM.from_pretrained(TEACHER)
    torch.manual_seed(seed)
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
    get_peft_model(model, lora).save_pretrained(folder)
    edit_json(folder / "adapter_config.json", base_model_name_or_path=BASE)
    if recipe is not None:
        DiffusionGenerationConfig(**recipe).save_pretrained(folder)
    return folder


def save_bert(folder: Path, bert_class: type[PreTrainedModel], **settings) -> Path:
    """A random model of a class of transformers."""
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32}
    torch.manual_seed(0)
    bert_class(BertConfig(num_attention_heads=2, **(sizes | settings))).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def saved_adapter(tmp_path_factory) -> Path:
    return save_adapter(tmp_path_factory.mktemp("saved") / "adapter")


@pytest.fixture
def adapter(saved_adapter, tmp_path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(saved_adapter, tmp_path / "adapter"))
