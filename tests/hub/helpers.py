# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Folders to push: an adapter on the bundled teacher, and small models of transformers."""

from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForMaskedLM, BertConfig, PreTrainedModel

import hf_dparallel
from hf_dparallel import DiffusionGenerationConfig

from ..helpers import edit_json


TEACHER = Path(hf_dparallel.demo.TEACHER)
BASE = "user/teacher"
RECIPE = {"max_new_tokens": 16, "block_length": 8, "entropy_threshold": 0.4}


def save_adapter(folder: Path, seed: int = 0, recipe: dict | None = RECIPE) -> Path:
    """Saves an adapter on the teacher with random weights, as PEFT does, and its recipe."""
    model = AutoModelForMaskedLM.from_pretrained(TEACHER)
    torch.manual_seed(seed)
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
    get_peft_model(model, lora).save_pretrained(folder)
    edit_json(folder / "adapter_config.json", base_model_name_or_path=BASE)
    if recipe is not None:
        DiffusionGenerationConfig(**recipe).save_pretrained(folder)
    return folder


def save_bert(folder: Path, bert_class: type[PreTrainedModel], **settings) -> Path:
    """Saves a random model of a class of transformers."""
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32}
    torch.manual_seed(0)
    bert_class(BertConfig(num_attention_heads=2, **(sizes | settings))).save_pretrained(folder)
    return folder
