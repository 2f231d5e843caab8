# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Adapters with random weights, in folders and on tiny models."""

from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model

from hf_dparallel import DiffusionGenerationConfig

from ..helpers import edit_json, make_llada


INPUT_IDS = torch.arange(2, 14)[None]


def save_adapter(folder: Path, make=make_llada, seed: int = 0, recipe: dict | None = None, **settings) -> Path:
    """Saves an adapter with random weights, as PEFT does."""
    lora = {"r": 4, "target_modules": ["q_proj", "o_proj", "down_proj"], "init_lora_weights": False} | settings
    model = get_peft_model(make(), LoraConfig(**lora))
    # The models of the tests start from the same random state.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(seed + len(name)))
    model.save_pretrained(folder)
    if recipe is not None:
        DiffusionGenerationConfig(**recipe).save_pretrained(folder)
    return folder


def adapted(folder: Path, make=make_llada, **kwargs):
    model = make()
    model.load_adapter(str(folder), **kwargs)
    return model


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(INPUT_IDS).logits


def edit_config(folder: Path, **settings) -> None:
    edit_json(folder / "adapter_config.json", **settings)
