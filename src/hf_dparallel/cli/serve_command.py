# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel serve`: an OpenAI-compatible server."""

import ipaddress
import os
import signal
import socket

from hf_dparallel_cli.command import Flags

from ..environment import require
from .console import note
from .loading import read_settings


# Of the extra `serve`.
LIBRARIES = ("llguidance", "pydantic", "starlette", "uvicorn")


def run(flags: Flags) -> dict[str, int]:
    """Serves until a signal arrives. Returns the numbers of prompts, tokens and passes."""
    check_settings(flags)
    require("hf-dparallel serve", *LIBRARIES)
    # Before loading the model, which may take minutes.
    listener = bind(flags.host, flags.port)
    if api_key(flags) is None and not _is_loopback(listener):
        note(f"Warning: anyone who can reach {flags.host} can use this server. Set --api_key.")
    return serve(flags, listener)


def check_settings(flags: Flags) -> None:
    """Raises a `UsageError` for conflicting settings."""
    read_settings(flags)


def api_key(flags: Flags) -> str | None:
    """Returns the API key of the flags or the environment, or `None`."""
    return flags.api_key or os.environ.get("HF_DPARALLEL_API_KEY") or None


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


def serve(flags: Flags, listener: socket.socket) -> dict[str, int]:
    """Loads the model and serves it until a signal arrives. Returns as [`run`] does."""
    from ..serving.server import Server
    from .serve_models import make_server

    names, engine, app = make_server(flags, api_key(flags))
    server = Server(app, engine, flags.grace_seconds, log_level=flags.log_level)
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    slots = engine.num_slots
    note(f"Serving {', '.join(names)} at {url}/v1, {slots} prompts at a time. Ctrl-C stops it.")
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
    return {"num_prompts": engine.num_prompts, "num_tokens": engine.num_tokens, "num_passes": engine.num_passes}


def _is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback
