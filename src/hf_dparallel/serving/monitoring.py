# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Monitoring of a server: a log line for each request, and metrics for Prometheus."""

import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from transformers.utils import logging

from ..terminal import printable
from .engine import Engine


logger = logging.get_logger(__name__)

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKENS_PER_FORWARD = (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32)
# Monitoring systems request these every few seconds, so they are logged at debug level.
_PROBES = ("/health", "/metrics")


class Metrics(Collector):
    """The metrics since the start: requests by model, and the state of the engine."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ours: dict[str, Any] = {"namespace": "hf_dparallel", "registry": self._registry}
        self._requests = Counter("requests", "Requests for text by status.", ["model", "status"], **ours)
        self._seconds = Histogram("request_seconds", "Seconds a request.", ["model"], buckets=_SECONDS, **ours)
        self._tokens_per_forward = Histogram(
            "tokens_per_forward", "Tokens per pass of a request.", ["model"], buckets=_TOKENS_PER_FORWARD, **ours
        )
        # The names are those in the usage of a request.
        self._costs = {
            "prompt_tokens": Counter("prompt_tokens", "Tokens of prompts.", ["model"], **ours),
            "completion_tokens": Counter("completion_tokens", "Tokens of answers.", ["model"], **ours),
            "nfe": Counter("forward_passes", "Passes; one with several rows counts for each.", ["model"], **ours),
        }

    def add(self, model: str, status: int, seconds: float, usage: dict[str, Any] | None) -> None:
        """Counts a request for text, and its usage if it was accepted."""
        self._requests.labels(model, status).inc()
        if usage is None:
            return
        for name, counter in self._costs.items():
            counter.labels(model).inc(usage[name])
        self._seconds.labels(model).observe(seconds)
        if usage["nfe"]:
            self._tokens_per_forward.labels(model).observe(usage["tokens_per_forward"])

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics of the engine, which does its own counting."""
        engine = self._engine
        yield CounterMetricFamily("hf_dparallel_engine_passes", "Passes of the engine.", engine.num_passes)
        yield GaugeMetricFamily("hf_dparallel_slots", "Prompts that can be decoded together.", engine.num_slots)
        yield GaugeMetricFamily("hf_dparallel_prompts_active", "Prompts being decoded.", engine.num_active)
        yield GaugeMetricFamily("hf_dparallel_prompts_waiting", "Prompts that wait for a slot.", engine.num_waiting)

    def text(self) -> bytes:
        """Returns all metrics in the format of Prometheus."""
        return generate_latest(self._registry)


class Monitor:
    """ASGI middleware that logs and counts requests, and gives each an id.

    Endpoints may set `request.state.model` (a name), `usage` (a function that returns the usage so far) and `error`.
    """

    def __init__(self, app: Callable, metrics: Metrics):
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: dict[str, Any], receive: Callable, send: Callable) -> None:
        """Passes a request on to the application, and logs it."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        state, status, start = scope.setdefault("state", {}), 500, time.perf_counter()
        state["id"] = f"req_{secrets.token_hex(16)}"

        async def send_and_look(message: dict[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), (b"x-request-id", state["id"].encode())]
            await send(message)

        try:
            await self.app(scope, receive, send_and_look)
        finally:
            self._record(scope, state, status, time.perf_counter() - start)

    def _record(self, scope: dict[str, Any], state: dict[str, Any], status: int, seconds: float) -> None:
        usage = state["usage"]() if "usage" in state else None
        if scope["method"] == "POST":
            self.metrics.add(state.get("model", ""), status, seconds, usage)
        client = scope["client"][0] if scope.get("client") else "-"
        line = f"{state['id']} {client} {scope['method']} {scope['path']} {status} {seconds:.2f} s"
        if usage is not None:
            tokens = f"{usage['prompt_tokens']} + {usage['completion_tokens']} tokens"
            line += f", {state['model']}, {tokens}, {usage['nfe']} pass{'es' * (usage['nfe'] != 1)}"
        if "error" in state:
            line += f": {state['error']}"
        # A client could write something that looks like further log lines.
        line = " ".join(printable(line).splitlines())
        (logger.debug if scope["path"] in _PROBES else logger.info)(line)
