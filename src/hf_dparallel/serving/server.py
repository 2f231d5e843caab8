# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The server itself, and how it stops."""

import asyncio
import gc
import math
import socket
from typing import Any

import uvicorn
from starlette.applications import Starlette

from .engine import Engine


# When the server stops, unfinished answers end with an error. Sending it may take so long.
_LAST_SECONDS = 5


class Server(uvicorn.Server):
    """Answers requests until a signal comes or the engine, which the application decodes with, fails.

    Answers that are under way then have `grace_seconds`. `settings` are uvicorn's.
    """

    def __init__(self, app: Starlette, engine: Engine, grace_seconds: float = 30, **settings: Any):
        config = uvicorn.Config(
            app,
            http="h11",
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
