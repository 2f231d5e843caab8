# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel serve`: answers requests of OpenAI clients over HTTP."""

import dataclasses
import ipaddress
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import COUNT, PORT, base_options, settings_options


if TYPE_CHECKING:
    from hf_dparallel.serving.api import ServedModel


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
@click.option("--served_model_name", help="Name of MODEL in the API. By default MODEL.")
@click.option("--batch_size", type=COUNT, help="Prompts decoded together. By default 16 on a GPU, 8 on a CPU.")
@click.option("--max_waiting", type=click.IntRange(0), default=128, help="Prompts that may wait; more get status 429.")
@settings_options
def serve_command(
    adapters: tuple[str, ...],
    host: str,
    port: int,
    api_key: str | None,
    served_model_name: str | None,
    batch_size: int | None,
    max_waiting: int,
    **options: Any,
) -> None:
    """Answer requests of OpenAI clients over HTTP, until a signal arrives.

    The field `model` of a request names one of the adapters, or the base model. Without it, the first adapter answers.

    Example: hf-dparallel serve demo --adapter demo-student
    """
    from hf_dparallel.environment import require

    from .loading import default_batch_size, load_model, read_settings

    name = served_model_name or options["model"]
    given, names = read_settings(options), read_names(adapters, name)
    require("hf-dparallel serve", "llguidance", "pydantic", "starlette", "uvicorn")
    from hf_dparallel.serving.api import ServedModel, Server, make_app
    from hf_dparallel.serving.engine import Engine

    # Before loading the model, which may take minutes.
    listener = listen(host, port)
    address, port = listener.getsockname()[:2]
    if api_key is None and not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        click.echo(f"Warning: anyone who can reach {host} can use this server. Set --api_key.", err=True)
    model, tokenizer = load_model(options)
    models = load_adapters(ServedModel(name, model, tokenizer, given), names)
    engine = Engine(model, batch_size or default_batch_size(), max_waiting)
    server = Server(make_app(models, engine, api_key), engine)
    url = f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
    click.echo(
        f"Serving {', '.join(models)} at {url}/v1, {engine.num_slots} prompts at a time. Ctrl-C stops it.", err=True
    )
    # uvicorn ends requests in flight, then raises the signal again, which must not kill this process.
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        engine.close()
    click.echo(f"Stopped. Prompts answered: {engine.num_prompts}.", err=True)
    if engine.failure is not None:
        raise RuntimeError(f"The decoding thread has failed: {engine.failure!r}") from engine.failure


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens on this address: clients wait until the model is loaded."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family)
    except OSError as error:
        raise OSError(
            f"`host={host}`, `port={port}` cannot be listened on: {error}. Try another --port or --host."
        ) from error


def read_names(adapters: Sequence[str], model: str) -> dict[str, str]:
    """Returns adapters, each `NAME=ADAPTER` or `ADAPTER`, by their names in requests; `model` is that of the model."""
    names: dict[str, str] = {}
    for text in adapters:
        name, is_named, path = text.partition("=")
        if not is_named or Path(text).exists():
            name = path = text
        if name in {*names, model}:
            rule = f"`adapter` has {name!r} twice, or it is the name of the model"
            raise click.UsageError(f"{rule}. Give it another name: NAME=ADAPTER.")
        names[name] = path
    return names


def load_adapters(base: "ServedModel", adapters: dict[str, str]) -> "dict[str, ServedModel]":
    """Loads adapters, and returns them and then the model itself, by the names that requests call them.

    Each has its own recipe, under the `generation_config` of `base`.
    """
    from hf_dparallel.demo import path_of
    from hf_dparallel.generation.compatibility import active_adapter, set_adapter
    from hf_dparallel.generation.configuration import check_chat, resolve

    from .loading import checked_name

    # MODEL may be an adapter itself, and is then active.
    base = dataclasses.replace(base, adapter=active_adapter(base.model))
    served = []
    for number, (name, path) in enumerate(adapters.items()):
        # PEFT's names are parts of the names of modules, which have no dots.
        adapter, path = f"served_{number}", path_of(path)
        with checked_name("adapter", path):
            base.model.load_adapter(path, adapter)
        served.append(dataclasses.replace(base, name=name, adapter=adapter))
    for each in (*served, base):
        # All settings, while its own recipe is the active one.
        set_adapter(base.model, each.adapter)
        check_chat(base.model, base.generation_config.chat_template_kwargs)
        each.generation_config = resolve(base.model, base.generation_config, base.tokenizer)
    return {each.name: each for each in (*served, base)}
