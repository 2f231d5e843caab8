# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel serve`: an OpenAI-compatible server."""

import ipaddress
import logging
import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING

from .arguments import BatchSizeArguments, CommandParser, ModelArguments, OutputArguments, RecipeArguments
from .console import note, write_json
from .loading import load_model


if TYPE_CHECKING:
    from starlette.applications import Starlette

    from ..serving.engine import Engine
    from .serve_models import ServedModels

logger = logging.getLogger(__name__)

_LIBRARIES = ("llguidance", "prometheus_client", "pydantic", "starlette", "uvicorn")
_KEY_VARIABLE = "HF_DPARALLEL_API_KEY"


@dataclass
class AdaptersArguments:
    _argument_group_name = "model"

    adapter: list[str] | None = field(
        default=None,
        metadata={
            "help": "Adapters, each [NAME=]ADAPTER: its name on the Hub, a folder, or 'demo-student'. Requests choose "
            "one, or the model itself, by its name as `model`; the first one answers requests that name none.",
            "metavar": "ADAPTER",
        },
    )


@dataclass
class ServerArguments(BatchSizeArguments):
    _argument_group_name = "server"

    host: str = field(
        default="127.0.0.1",
        metadata={"help": "Address to listen at. The default is reached from this machine only; 0.0.0.0 is all."},
    )
    port: int = field(default=8000, metadata={"help": "Port to listen at. 0 takes a free one."})
    api_key: str | None = field(
        default=None,
        metadata={"help": f"What clients must send as their API key. By default that in ${_KEY_VARIABLE}, if any."},
    )
    served_model_name: str | None = field(
        default=None,
        metadata={"help": "What clients call the first model. By default as in --adapter, or in --model."},
    )
    max_waiting: int = field(
        default=128,
        metadata={"help": "Prompts that may wait for one of the batch_size slots; more are refused with status 429."},
    )
    max_request_bytes: int = field(default=2**20, metadata={"help": "Length of the longest request."})
    grace_seconds: float = field(
        default=30.0, metadata={"help": "Seconds that answers under way may take when the server is told to stop."}
    )
    log_level: str = field(
        default="info",
        metadata={
            "help": "'info' logs every request with its status and cost, 'debug' also those of probes.",
            "choices": ["debug", "info", "warning", "error"],
        },
    )

    def __post_init__(self):
        super().__post_init__()
        self.api_key = self.api_key or os.environ.get(_KEY_VARIABLE) or None
        if not 0 <= self.port < 2**16:
            raise ValueError(f"`port` must be between 0 and 65535, got {self.port}.")
        for name, least in (("max_waiting", 0), ("max_request_bytes", 1), ("grace_seconds", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"`{name}` must be at least {least}, got {getattr(self, name)}.")


def make_parser() -> CommandParser:
    """The arguments of the command."""
    return CommandParser(
        "serve",
        [ModelArguments, AdaptersArguments, ServerArguments, RecipeArguments, OutputArguments],
        positionals=["model"],
    )


def run(argv: Sequence[str]) -> None:
    """Serves until it is interrupted or terminated."""
    parser = make_parser()
    loading, adapters, server, recipe, output = parser.parse(argv)
    check_recipe(parser, recipe)
    missing = [name for name in _LIBRARIES if find_spec(name) is None]
    if missing:
        raise ImportError(f"`hf-dparallel serve` needs {', '.join(missing)}: `pip install 'hf-dparallel[serve]'`.")
    # Before the model is loaded, which takes minutes.
    listener = bind(server.host, server.port)
    if server.api_key is None and not _is_loopback(listener):
        note(f"Warning: anyone who reaches {server.host} can use this server. Set --api_key.")
    figures = serve(loading, adapters.adapter or [], server, recipe, listener)
    write_json(figures, output.json)


def check_recipe(parser: CommandParser, recipe: RecipeArguments) -> None:
    """Refuses settings that a server cannot follow."""
    if "max_time" in recipe.settings:
        parser.error("`max_time` limits one call of `generate`, and a server makes none. Remove it")


def bind(host: str, port: int) -> socket.socket:
    """Returns a socket at this address.

    Raises:
        OSError: if the address is not of this machine, or in use.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise OSError(f"`host={host}`, `port={port}` cannot be listened at: {error}. Try another --port.") from error
    return listener


def serve(
    loading: ModelArguments,
    adapters: list[str],
    arguments: ServerArguments,
    recipe: RecipeArguments,
    listener: socket.socket,
) -> dict[str, int]:
    """Loads the model, serves it until a signal comes, and returns what was done.

    Raises:
        RuntimeError: if the decoding has failed as a whole.
    """
    from ..serving.server import Server

    models, engine, app = make_server(loading, adapters, arguments, recipe, _is_loopback(listener))
    server = Server(app, engine, log_level=arguments.log_level, grace_seconds=arguments.grace_seconds)
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    names, slots = ", ".join(models.by_name), engine.num_slots
    note(f"Serving {names} at {url}/v1, {slots} prompts at a time, and a chat at {url}. Ctrl-C stops it.")
    if hasattr(signal, "SIGHUP"):  # not on Windows
        signal.signal(signal.SIGHUP, lambda *_: engine.call(lambda: _reload(models, engine)))
    # uvicorn ends what is under way, and then raises the signal again; that shall not kill this process.
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        engine.close()
    note(f"Stopped after {engine.num_prompts} prompts.")
    if engine.failure is not None:
        raise RuntimeError(f"The decoding has failed: {engine.failure!r}") from engine.failure
    return {"num_prompts": engine.num_prompts, "num_tokens": engine.num_tokens, "num_passes": engine.num_passes}


def make_server(
    loading: ModelArguments,
    adapters: list[str],
    arguments: ServerArguments,
    recipe: RecipeArguments,
    is_loopback: bool,
) -> "tuple[ServedModels, Engine, Starlette]":
    """Loads the model, and returns what answers requests for it, wherever they come from."""
    from ..serving.app import make_app
    from ..serving.engine import Engine
    from .serve_models import ServedModels, read_names

    _log_to_stderr(arguments.log_level)
    if arguments.served_model_name and adapters:
        adapters = [f"{arguments.served_model_name}={adapters[0].rpartition('=')[2]}", *adapters[1:]]
    name = loading.model if adapters else arguments.served_model_name or loading.model
    by_name = read_names(adapters)
    model, tokenizer = load_model(loading)
    models = ServedModels(name, model, tokenizer, by_name, recipe.to_generation_config())
    engine = Engine(model, arguments.batch_size, arguments.max_waiting)
    # The names by which this machine calls itself, where being on it is all that a client needs.
    is_open = arguments.api_key is not None or not is_loopback
    hosts = None if is_open else ["localhost", "127.0.0.1", "[::1]", arguments.host]
    return models, engine, make_app(models.by_name, engine, arguments.api_key, arguments.max_request_bytes, hosts)


def _reload(models: "ServedModels", engine: "Engine") -> None:
    try:
        models.load(in_use=engine.adapters)
    except Exception as error:  # noqa: BLE001  # whatever is wrong with the new ones, the server goes on
        logger.error(f"The adapters cannot be read anew, and stay as they were: {error}")
    else:
        logger.info(f"Read {len(models.adapters)} adapters anew.")


def _log_to_stderr(level: str) -> None:
    """What our modules log, with times, as uvicorn logs."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log = logging.getLogger("hf_dparallel")
    log.handlers, log.propagate = [handler], False
    log.setLevel(level.upper())


def _is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback
