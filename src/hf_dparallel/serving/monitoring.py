# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What operators see of a server: a line for each request in the log, and figures in the format of Prometheus."""

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from transformers.utils import logging

from ..terminal import printable
from .engine import Engine


logger = logging.get_logger(__name__)

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKENS_PER_FORWARD = (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32)
# Asked for every few seconds by machines.
_PROBES = ("/health", "/metrics")


class Histogram:
    """Counts of values up to each of some bounds."""

    def __init__(self, bounds: tuple[float, ...]):
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Counts a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, label: str) -> Iterator[str]:
        """As Prometheus reads it."""
        count = 0
        for bound, number in zip([*self.bounds, "+Inf"], self.counts, strict=True):
            count += number
            yield f'{name}_bucket{{{label},le="{bound}"}} {count}'
        yield f"{name}_sum{{{label}}} {self.total:.6g}"
        yield f"{name}_count{{{label}}} {count}"


class Metrics:
    """Figures since the start, by the model that was asked."""

    def __init__(self) -> None:
        self._counters: dict[str, dict[str, float]] = {
            "hf_dparallel_requests_total": defaultdict(float),
            "hf_dparallel_prompt_tokens_total": defaultdict(float),
            "hf_dparallel_completion_tokens_total": defaultdict(float),
            # A pass with several rows counts for each of them.
            "hf_dparallel_forward_passes_total": defaultdict(float),
        }
        self._histograms: dict[str, defaultdict[str, Histogram]] = {
            "hf_dparallel_request_seconds": defaultdict(lambda: Histogram(_SECONDS)),
            "hf_dparallel_tokens_per_forward": defaultdict(lambda: Histogram(_TOKENS_PER_FORWARD)),
        }

    def add(self, model: str, status: int, seconds: float, usage: dict[str, Any] | None) -> None:
        """Counts a request for text, and what it has cost, if it was taken."""
        label = f"model={_quoted(model)}"
        requests, prompt_tokens, completion_tokens, passes = self._counters.values()
        requests[f'{label},status="{status}"'] += 1
        if usage is None:
            return
        prompt_tokens[label] += usage["prompt_tokens"]
        completion_tokens[label] += usage["completion_tokens"]
        passes[label] += usage["nfe"]
        latency, tokens_per_forward = self._histograms.values()
        latency[label].add(seconds)
        if usage["nfe"]:
            tokens_per_forward[label].add(usage["tokens_per_forward"])

    def text(self, engine: Engine) -> str:
        """All figures, those of the engine among them, as Prometheus reads them."""
        lines = []
        for name, values in self._counters.items():
            lines += [f"# TYPE {name} counter", *(f"{name}{{{label}}} {value:g}" for label, value in values.items())]
        for name, histograms in self._histograms.items():
            lines.append(f"# TYPE {name} histogram")
            for label, histogram in histograms.items():
                lines += histogram.lines(name, label)
        for name, kind, value in (
            ("engine_passes_total", "counter", engine.num_passes),
            ("slots", "gauge", engine.num_slots),
            ("prompts_active", "gauge", engine.num_active),
            ("prompts_waiting", "gauge", engine.num_waiting),
        ):
            lines += [f"# TYPE hf_dparallel_{name} {kind}", f"hf_dparallel_{name} {value}"]
        return "\n".join(lines) + "\n"


class Monitor:
    """ASGI middleware that logs and counts what the application answers.

    An endpoint says more of a request in `request.state`: `model` (its name), `usage` (a function that returns what it
    has cost so far) and `error`.
    """

    def __init__(self, app: Callable, metrics: Metrics):
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: dict[str, Any], receive: Callable, send: Callable) -> None:
        """Answers a request."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        state, status, start = scope.setdefault("state", {}), 500, time.perf_counter()

        async def send_and_look(message: dict[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
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
        line = f"{client} {scope['method']} {scope['path']} {status} {seconds:.2f} s"
        if usage is not None:
            tokens = f"{usage['prompt_tokens']} + {usage['completion_tokens']} tokens"
            line += f", {state['model']}, {tokens}, {usage['nfe']} passes"
        if "error" in state:
            line += f": {state['error']}"
        # What a client writes shall not look like lines of the log.
        line = " ".join(printable(line).splitlines())
        (logger.debug if scope["path"] in _PROBES else logger.info)(line)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
