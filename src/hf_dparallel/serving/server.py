# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The server itself: its connections, and how it stops."""

import asyncio
import gc
import math
import socket
from functools import partial
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from .engine import Engine


# How long a client may take to send the head of a request, or to read on, in tenths of a second.
_WAIT_TICKS = 100
# When the server stops, unfinished answers end with an error. Sending it may take so long.
_LAST_SECONDS = 5


class Connection(H11Protocol):
    """A connection of uvicorn that ends where its client neither sends a request nor reads the answer to one."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.app = partial(self._answer, self.app)
        self._last_cycle: Any = None
        self._unread = self._ticks = 0

    def tick(self) -> None:
        """Ends the connection if nothing is under way for too long. The time of a head begins with its first part."""
        is_under_way = self.cycle is not None and not self.cycle.response_complete and not self.flow.write_paused
        unread = self.transport.get_write_buffer_size()
        moves = is_under_way or self.cycle is not self._last_cycle or unread < self._unread
        self._last_cycle, self._unread, self._ticks = self.cycle, unread, 0 if moves else self._ticks + 1
        if self._ticks >= _WAIT_TICKS:
            self.transport.abort()

    async def _answer(self, app: Any, scope: Any, receive: Any, send: Any) -> None:
        """Has the connection closed where what follows may be the rest of this request."""
        is_ambiguous = {b"content-length", b"transfer-encoding"} <= dict(scope["headers"]).keys()

        async def send_and_close(message: Any) -> None:
            if message["type"] == "http.response.start" and (is_ambiguous or self.conn.their_state is h11.SEND_BODY):
                message["headers"] = [*message.get("headers", []), (b"connection", b"close")]
            await send(message)

        if is_ambiguous:
            app = PlainTextResponse("Send the header Content-Length or Transfer-Encoding, not both.", status_code=400)
        await app(scope, receive, send_and_close)


class Server(uvicorn.Server):
    """Answers requests until a signal comes or the engine, which the application decodes with, fails.

    Answers that are under way then have `grace_seconds`. `settings` are uvicorn's.
    """

    def __init__(self, app: Starlette, engine: Engine, grace_seconds: float = 30, **settings: Any):
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            # The application has a line for each request that says more.
            access_log=False,
            # Later than connections end, so that uvicorn cancels no task, which would leave a traceback of each.
            timeout_graceful_shutdown=math.ceil(grace_seconds + _LAST_SECONDS) + 1,
            # By default no proxy is believed.
            **{"log_level": "warning", "forwarded_allow_ips": []} | settings,
        )
        super().__init__(config)
        self.engine = engine
        self.grace_seconds = grace_seconds
        # While the garbage collector looks through the libraries, nobody is answered for a second. They stay anyway.
        gc.collect()
        gc.freeze()

    async def on_tick(self, counter: int) -> bool:
        connections: list[Any] = list(self.server_state.connections)
        for connection in connections:
            connection.tick()
        return await super().on_tick(counter) or self.engine.failure is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Unfinished answers then end with an error, so that a client knows that they are not whole.
        loop = asyncio.get_running_loop()
        loop.call_later(self.grace_seconds, self.engine.stop)
        loop.call_later(self.grace_seconds + _LAST_SECONDS, self._abort)
        await super().shutdown(sockets)

    def _abort(self) -> None:
        """Ends the connections whose clients do not read the end of their answers."""
        connections: list[Any] = list(self.server_state.connections)
        for connection in connections:
            connection.transport.abort()
