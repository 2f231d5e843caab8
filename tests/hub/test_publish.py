# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Publishing adapters and models: what is uploaded, what is not, and what comes back."""

import json
import re
import shutil

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoTokenizer

from hf_dparallel import DiffusionGenerationConfig, push_model_to_hub

from .conftest import BASE, RECIPE, TEACHER, save_adapter


REPORT = {"accuracy": 0.75, "nfe": 9.5, "tokens_per_forward": 5.25, "latency_s": 0.125, "num_prompts": 8}


def test_a_round_trip_gives_the_same_weights_and_recipe(hub, adapter, tmp_path):
    push_model_to_hub(adapter, "user/student")

    model = AutoModelForMaskedLM.from_pretrained("user/student")
    model.save_pretrained(tmp_path / "back")
    pushed, pulled = (load_file(folder / "adapter_model.safetensors") for folder in (adapter, tmp_path / "back"))
    assert pushed.keys() == pulled.keys()
    assert all(torch.equal(pushed[name], pulled[name]) for name in pushed)
    local = AutoModelForMaskedLM.from_pretrained(TEACHER)
    local.load_adapter(str(adapter))
    assert model.generation_config.to_dict() == local.generation_config.to_dict()
    assert {name: getattr(model.generation_config, name) for name in RECIPE} == RECIPE
    read = DiffusionGenerationConfig.from_pretrained("user/student")
    assert read.to_dict() == DiffusionGenerationConfig.from_pretrained(adapter).to_dict()
