# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The log and the figures of a server."""

import logging
import re

import httpx
import pytest

from .helpers import PROBLEMS, chat, running


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="hf_dparallel")
    return lambda: [record.getMessage() for record in caplog.records if "monitoring" in record.name]


def figures(url: str) -> dict[str, float]:
    answer = httpx.get(f"{url}/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    pairs = (line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_requests_are_logged_and_counted(served, lines):
    with running(served) as server:
        usage = server.post(chat(PROBLEMS[0])).json()["usage"]
        streamed = server.post(chat(PROBLEMS[0]) | {"stream": True})
        server.post(chat("x") | {"max_tokens": "secret"})
        server.post(chat("x") | {"\n127.0.0.1 POST forged": 1})
        httpx.get(f"{server.url}/health")
        httpx.get(f"{server.url}/none")
        found = figures(server.url)
    cost = rf"demo, {usage['prompt_tokens']} \+ {usage['completion_tokens']} tokens, {usage['nfe']} passes"
    whole, stream, refused, forged, missing = lines()
    for line in (whole, stream):
        assert re.fullmatch(rf"req_\w{{32}} 127\.0\.0\.1 POST /v1/chat/completions 200 \d+\.\d\d s, {cost}", line)
    # A client that reports an answer can name its line.
    assert stream.startswith(streamed.headers["x-request-id"]) and not whole.startswith(stream.split()[0])
    assert re.fullmatch(r"req_\w+ 127\.0\.0\.1 POST /v1/chat/completions 400 .* s: `max_tokens` is refused", refused)
    assert "\n" not in forged and " GET /none 404 " in missing
    assert found['hf_dparallel_requests_total{model="demo",status="200"}'] == 2
    assert found['hf_dparallel_requests_total{model="demo",status="400"}'] == 2
    assert found['hf_dparallel_completion_tokens_total{model="demo"}'] == 2 * usage["completion_tokens"]
    assert found['hf_dparallel_forward_passes_total{model="demo"}'] == 2 * usage["nfe"]
    assert found['hf_dparallel_request_seconds_count{model="demo"}'] == 2
    assert found['hf_dparallel_tokens_per_forward_bucket{le="+Inf",model="demo"}'] == 2
    assert found["hf_dparallel_engine_passes_total"] == 2 * usage["nfe"] and found["hf_dparallel_slots"] == 16
    assert found["hf_dparallel_prompts_active"] == found["hf_dparallel_prompts_waiting"] == 0
