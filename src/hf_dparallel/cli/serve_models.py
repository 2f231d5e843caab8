# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What a server answers with: one set of weights and its adapters by name, in an application.

Needs the libraries of the extra `serve`.
"""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

import click
from starlette.applications import Starlette
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_dparallel_cli.command import Flags

from ..demo import path_of
from ..generation.compatibility import active_adapter, set_adapter
from ..generation.configuration import DiffusionGenerationConfig
from ..serving.app import make_app
from ..serving.engine import Engine
from ..serving.requests import ServedModel
from .loading import batch_size, checked_name, load_model, read_settings, resolve_settings


def make_server(flags: Flags, key: str | None) -> tuple[list[str], Engine, Starlette]:
    """Loads the model, and returns the model names, the engine and the application."""
    _log_to_stderr(flags.log_level)
    name, by_name = read_names(flags.adapter, flags.model, flags.served_model_name)
    model, tokenizer = load_model(flags)
    models = served_models(name, model, tokenizer, by_name, read_settings(flags))
    engine = Engine(model, batch_size(flags.batch_size), flags.max_waiting)
    return list(models), engine, make_app(models, engine, key, flags.max_request_bytes)


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


def _log_to_stderr(level: str) -> None:
    """Logs the messages of our modules with times, as uvicorn does."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log = logging.getLogger("hf_dparallel")
    log.handlers, log.propagate = [handler], False
    log.setLevel(level.upper())
