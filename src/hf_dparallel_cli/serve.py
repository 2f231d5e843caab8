# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel serve`: answers requests of OpenAI clients over HTTP."""

import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from .options import PORT, base_options, batch_option, settings_options


if TYPE_CHECKING:
    from hf_dparallel.serving.api import ServedModel

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def read_api_key(context: click.Context, option: click.Parameter, given: str | None) -> str | None:
    """Returns the key of the flag, or else of the environment. Raises a `UsageError` if no client could send it."""
    key = given
    if key is None:
        key = os.environ.get("HF_DPARALLEL_API_KEY")
    if key is not None and (not key or key != key.strip()):
        raise click.UsageError("`api_key`, or $HF_DPARALLEL_API_KEY, is empty or has white space at an end. Trim it.")
    return key


@click.command()
@base_options
@click.option("--adapter", "adapters", multiple=True, help="Adapter, [NAME=]ADAPTER. May be given several times.")
@click.option("--host", default="127.0.0.1", help="Address to listen on. 0.0.0.0 accepts connections from everywhere.")
@click.option("--port", type=PORT, default=8000, help="Port to listen on. 0 chooses a free port.")
@click.option("--api_key", callback=read_api_key, help="Key that clients must send. By default $HF_DPARALLEL_API_KEY.")
@batch_option
@click.option("--max_waiting", type=click.IntRange(0), default=128, help="Prompts that may wait; more get status 429.")
@settings_options
def serve_command(
    adapters: tuple[str, ...],
    host: str,
    port: int,
    api_key: str | None,
    batch_size: int,
    max_waiting: int,
    **options: Any,
) -> None:
    """Answer requests of OpenAI clients over HTTP, until a signal arrives.

    The field `model` of a request names one of the adapters, or the base model. Without it, the first adapter answers.
    An adapter that is served alone, as MODEL, is merged in float32; half precision would round the weights.

    Example: hf-dparallel serve demo --adapter demo-student
    """
    from hf_dparallel.environment import require

    from .loading import load_model, merge_adapter, read_settings

    given = read_settings(options)
    names = read_names(adapters, options["model"])
    require("hf-dparallel serve", "llguidance", "pydantic", "starlette", "uvicorn")
    import uvicorn

    from hf_dparallel.serving.api import make_app
    from hf_dparallel.serving.engine import Engine

    # Before loading the model, which may take minutes; clients wait.
    family = socket.AF_INET
    shown_host = host
    if ":" in host:
        family = socket.AF_INET6
        shown_host = f"[{host}]"
    listener = socket.create_server((host, port), family=family)
    if api_key is None and host not in _LOOPBACK:
        click.echo(f"Warning: anyone who can reach {host} can use this server. Set --api_key.", err=True)

    model, tokenizer = load_model(options)
    models = load_adapters(model, tokenizer, given, names | {options["model"]: None})
    if len(models) == 1:
        merge_adapter(model)
    engine = Engine(model, batch_size, max_waiting)

    async def stop_with_engine() -> None:
        server.should_exit |= engine.failure is not None

    app = make_app(models, engine, api_key, is_local=host in _LOOPBACK)
    hooks: dict[str, Any] = {"callback_notify": stop_with_engine, "timeout_notify": 1, "http": "h11"}
    server = uvicorn.Server(uvicorn.Config(app, timeout_graceful_shutdown=30, **hooks))
    url = f"http://{shown_host}:{listener.getsockname()[1]}/v1"
    click.echo(
        f"Serving {', '.join(models)} at {url}, {engine.num_slots} prompts at a time. Ctrl-C stops it.", err=True
    )
    # uvicorn ends requests in flight, then raises the signal again, which must not kill this process.
    signal.signal(signal.SIGTERM, lambda *_: None)
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
    engine.close()
    if engine.failure is not None:
        raise RuntimeError(f"The decoding thread has failed: {engine.failure!r}") from engine.failure


def read_names(adapters: Sequence[str], model: str) -> dict[str, str | None]:
    """Returns adapters, each `NAME=ADAPTER` or `ADAPTER`, by their names in requests; `model` is that of the model."""
    names: dict[str, str | None] = {}
    for text in adapters:
        name, _, path = text.partition("=")
        if name in {*names, model}:
            rule = f"`adapter` has {name!r} twice, or it is the name of the model"
            raise click.UsageError(f"{rule}. Give it another name: NAME=ADAPTER.")
        names[name] = path or name
    return names


def load_adapters(model: Any, tokenizer: Any, given: Any, names: dict[str, str | None]) -> "dict[str, ServedModel]":
    """Loads adapters into a model, and returns them by the names that requests call them; `None` is the model itself.

    Each has its own recipe, under the settings `given` for all.
    """
    from hf_dparallel.demo import path_of
    from hf_dparallel.generation.adapters import active_adapter
    from hf_dparallel.serving.api import ServedModel

    from .loading import checked_name

    # MODEL may be an adapter itself, and is then active.
    adapters = dict.fromkeys(names, active_adapter(model))
    for number, (name, path) in enumerate(names.items()):
        if path is not None:
            # PEFT's names are parts of the names of modules, which have no dots.
            adapters[name] = f"served_{number}"
            with checked_name("adapter", path):
                model.load_adapter(path_of(path), adapters[name])
    return {name: ServedModel(name, model, tokenizer, given, adapter) for name, adapter in adapters.items()}
