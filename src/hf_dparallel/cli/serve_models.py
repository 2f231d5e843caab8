# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The models that a server answers with: one set of weights, and its adapters by name."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import click
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..demo import path_of
from ..generation.compatibility import active_adapter, set_adapter
from ..generation.configuration import DiffusionGenerationConfig
from ..serving.requests import ServedModel
from .loading import checked_name, resolve_settings


def read_names(adapters: Sequence[str], model: str, first: str | None = None) -> tuple[str, dict[str, str]]:
    """Returns the model's name in requests, and adapters, each `NAME=ADAPTER` or `ADAPTER`, by their names.

    `first` is what they call the first of these, the model after its adapters.
    """
    names: dict[str, str] = {}
    for text in adapters:
        name, is_named, path = text.partition("=")
        if not is_named or Path(text).exists():
            name = path = text
        name, first = first or name, None
        if name in names:
            raise click.UsageError(f"`adapter` has {name!r} twice. Give one of them another name: NAME=ADAPTER.")
        names[name] = path
    model = first or model
    if model in names:
        raise click.UsageError(f"An adapter has the name of the model, {model!r}. Give it another: NAME=ADAPTER.")
    return model, names


def served_models(
    name: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    adapters: dict[str, str],
    generation_config: DiffusionGenerationConfig,
) -> dict[str, ServedModel]:
    """Loads adapters, and returns them and then the model itself, by the names that requests call them.

    `generation_config` has settings over the recipe of each of them.
    """
    # MODEL may be an adapter itself, and is then active.
    base = ServedModel(name, model, tokenizer, generation_config, active_adapter(model))
    served = [base]
    for number, (adapter_name, path) in enumerate(adapters.items()):
        # PEFT's names are parts of the names of modules, which have no dots.
        adapter, path = f"served_{number}", path_of(path)
        with checked_name("adapter", path):
            model.load_adapter(path, adapter)
        served.insert(number, dataclasses.replace(base, name=adapter_name, adapter=adapter, parent=name))
    for each in served:
        # All settings, while its own recipe is the active one.
        set_adapter(model, each.adapter)
        each.generation_config = resolve_settings(model, generation_config, tokenizer)
    return {each.name: each for each in served}
