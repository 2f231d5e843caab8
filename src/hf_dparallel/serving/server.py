# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The server itself: its connections, and how it stops."""

import asyncio
import gc
import math
import socket

import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from .engine import Engine


# How long a client may take to send the head of a request.
_HEAD_SECONDS = 10
# When the server stops, unfinished answers end with an error. Sending it may take so long.
_LAST_SECONDS = 5


class Connection(H11Protocol):
    """A connection of uvicorn that is closed if it does not bring a request: open connections are limited."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._set_deadline()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._set_deadline()

    def _set_deadline(self) -> None:
        """However often a part of the head comes, the time begins with the first."""
        if self.conn.their_state is not h11.IDLE:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
        elif self._deadline is None:
            self._deadline = self.loop.call_later(_HEAD_SECONDS, self.transport.close)


class Server(uvicorn.Server):
    """Answers requests until a signal comes or the engine, which the application decodes with, fails.

    Answers that are under way then have `grace_seconds`. The port is for `run` without sockets.
    """

    def __init__(
        self, app: Starlette, engine: Engine, log_level: str = "warning", port: int = 0, grace_seconds: float = 30
    ):
        config = uvicorn.Config(
            app,
            port=port,
            http=Connection,
            log_level=log_level,
            # The application has a line for each request that says more.
            access_log=False,
            timeout_graceful_shutdown=math.ceil(grace_seconds + _LAST_SECONDS),
        )
        super().__init__(config)
        self.engine = engine
        self.grace_seconds = grace_seconds
        # While the garbage collector looks through the libraries, nobody is answered for a second. They stay anyway.
        gc.collect()
        gc.freeze()

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self.engine.failure is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Unfinished answers then end with an error, so that a client knows that they are not whole.
        asyncio.get_running_loop().call_later(self.grace_seconds, self.engine.stop)
        await super().shutdown(sockets)
