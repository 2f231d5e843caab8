# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel serve`: answers requests of OpenAI clients over HTTP."""

import dataclasses
import ipaddress
import logging
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .console import note
from .options import COUNT, PORT, base_options, settings_options


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from hf_dparallel.generation.configuration import DiffusionGenerationConfig
    from hf_dparallel.serving.requests import ServedModel

# Of the extra `serve`.
LIBRARIES = ("llguidance", "pydantic", "starlette", "uvicorn")
LOG_LEVELS = click.Choice(("debug", "info", "warning", "error"))


def read_api_key(context: click.Context, option: click.Parameter, given: str | None) -> str | None:
    """Returns the key of the flag, or else of the environment. Raises a `UsageError` if no client could send it."""
    key = os.environ.get("HF_DPARALLEL_API_KEY") if given is None else given
    if key is not None and (not key or key != key.strip()):
        raise click.UsageError(
            "`api_key`, or $HF_DPARALLEL_API_KEY, is empty or has white space at an end, so no client could send it. "
            "Give the key alone, or remove the flag and the variable."
        )
    return key


@click.command()
@base_options
@click.option("--adapter", "adapters", multiple=True, help="Adapter, [NAME=]ADAPTER. May be given several times.")
@click.option("--host", default="127.0.0.1", help="Address to listen on. 0.0.0.0 accepts connections from everywhere.")
@click.option("--port", type=PORT, default=8000, help="Port to listen on. 0 chooses a free port.")
@click.option("--api_key", callback=read_api_key, help="Key that clients must send. By default $HF_DPARALLEL_API_KEY.")
@click.option("--served_model_name", help="Model name in the API. By default the adapter, or else the model.")
@click.option("--batch_size", type=COUNT, help="Prompts decoded together. By default 16 on a GPU, 8 on a CPU.")
@click.option("--max_waiting", type=click.IntRange(0), default=128, help="Prompts that may wait; more get status 429.")
@click.option("--max_request_bytes", type=COUNT, default=2**20, help="Size limit of a request.")
@click.option("--grace_seconds", type=click.FloatRange(0), default=30.0, help="Seconds to finish requests at the end.")
@click.option("--log_level", type=LOG_LEVELS, default="info", help="'info' logs each request with its status.")
@settings_options
def serve_command(
    adapters: tuple[str, ...],
    host: str,
    port: int,
    api_key: str | None,
    served_model_name: str | None,
    batch_size: int | None,
    max_waiting: int,
    max_request_bytes: int,
    grace_seconds: float,
    log_level: str,
    **options: Any,
) -> None:
    """Answer requests of OpenAI clients over HTTP, until a signal arrives.

    The field `model` of a request names one of the adapters, or the base model. Without it, the first adapter answers.

    Example: hf-dparallel serve demo --adapter demo-student
    """
    from hf_dparallel.environment import require

    from .loading import default_batch_size, load_model, read_settings

    given = read_settings(options)
    require("hf-dparallel serve", *LIBRARIES)
    from hf_dparallel.serving.api import make_app
    from hf_dparallel.serving.engine import Engine
    from hf_dparallel.serving.server import Server

    # Before loading the model, which may take minutes.
    listener = bind(host, port)
    address, port = listener.getsockname()[:2]
    if api_key is None and not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        note(f"Warning: anyone who can reach {host} can use this server. Set --api_key.")
    log_to_stderr(log_level)
    name, by_name = read_names(adapters, options["model"], served_model_name)
    model, tokenizer = load_model(**options)
    models = served_models(name, model, tokenizer, by_name, given)
    engine = Engine(model, batch_size or default_batch_size(), max_waiting)
    app = make_app(models, engine, api_key, max_request_bytes)
    server = Server(app, engine, grace_seconds, log_level=log_level)
    url = f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
    # From now on clients are heard.
    listener.listen()
    note(f"Serving {', '.join(models)} at {url}/v1, {engine.num_slots} prompts at a time. Ctrl-C stops it.")
    # uvicorn ends requests in flight, then raises the signal again, which must not kill this process.
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        engine.close()
    note(f"Stopped. Prompts answered: {engine.num_prompts}.")
    if engine.failure is not None:
        raise RuntimeError(f"The decoding thread has failed: {engine.failure!r}") from engine.failure


def bind(host: str, port: int) -> socket.socket:
    """Returns a socket that is bound to this address."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise OSError(
            f"`host={host}`, `port={port}` cannot be listened on: {error}. Try another --port or --host."
        ) from error
    return listener


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
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    adapters: dict[str, str],
    generation_config: "DiffusionGenerationConfig",
) -> "dict[str, ServedModel]":
    """Loads adapters, and returns them and then the model itself, by the names that requests call them.

    `generation_config` has settings over the recipe of each of them.
    """
    from hf_dparallel.demo import path_of
    from hf_dparallel.generation.compatibility import active_adapter, set_adapter
    from hf_dparallel.generation.configuration import resolve
    from hf_dparallel.serving.requests import ServedModel

    from .loading import checked_name

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
        each.generation_config = resolve(model, generation_config, tokenizer)
    return {each.name: each for each in served}


def log_to_stderr(level: str) -> None:
    """Logs the messages of our modules with times, as uvicorn does."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log = logging.getLogger("hf_dparallel")
    log.handlers, log.propagate = [handler], False
    log.setLevel(level.upper())
