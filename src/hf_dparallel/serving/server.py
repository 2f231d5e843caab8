# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The HTTP server, and how it shuts down."""

import asyncio
import gc
import math
import socket
from typing import Any

import uvicorn
from starlette.applications import Starlette

from .engine import Engine


# At shutdown, unfinished answers end with an error. Clients have this long to receive it.
_LAST_SECONDS = 5


class Server(uvicorn.Server):
    """Answers requests until a signal arrives or the engine fails.

    Requests in flight then have `grace_seconds` to finish. `settings` are passed to `uvicorn.Config`.
    """

    def __init__(self, app: Starlette, engine: Engine, grace_seconds: float = 30, **settings: Any):
        limit = math.ceil(grace_seconds + _LAST_SECONDS)
        defaults: dict[str, Any] = {"log_level": "warning", "timeout_graceful_shutdown": limit}
        super().__init__(uvicorn.Config(app, http="h11", ws="none", **defaults | settings))
        self.engine = engine
        self.grace_seconds = grace_seconds
        # Otherwise each collection would scan all imported modules, and block the server for a second.
        gc.collect()
        gc.freeze()

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self.engine.failure is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # The engine ends unfinished answers with an error, so that clients know that they are cut off.
        asyncio.get_running_loop().call_later(self.grace_seconds, self.engine.stop)
        await super().shutdown(sockets)
