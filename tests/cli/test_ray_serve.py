# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""examples/ray: the server as an application of Ray Serve, on a cluster."""

import json
import os
import signal
import socket
import time

import httpx
import psutil
import pytest

from .helpers import answer


VALUES = {"max_new_tokens": 8, "block_length": "4", "entropy_threshold": 1.0, "served_model_name": "tiny"}


@pytest.fixture
def url(ray_cluster):
    from ray import serve

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serve.start(http_options={"port": port}, logging_config={"log_level": "ERROR"})
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()


def replicas() -> list[psutil.Process]:
    lines = [(process, " ".join(process.info["cmdline"] or [])) for process in psutil.process_iter(["cmdline"])]
    return [process for process, line in lines if line.startswith("ray::") and "ServeReplica:tiny" in line]


@pytest.mark.slow
def test_replicas_answer_as_the_server_does_and_are_replaced(url, checkpoint):
    from ray import serve
    from serve_on_ray import app

    serve.run(app({"model": checkpoint, "min_replicas": 2, "max_replicas": "2", **VALUES}), name="tiny")
    body = {"model": "tiny", "messages": [{"role": "user", "content": "5 6"}]}
    text, nfe = answer(checkpoint, "5 6")

    def ask(**more) -> httpx.Response:
        return httpx.post(f"{url}/v1/chat/completions", json=body | more, timeout=60)

    whole = ask().json()
    assert (whole["choices"][0]["message"]["content"], whole["usage"]["nfe"]) == (text, nfe)
    events = [line[6:] for line in ask(stream=True, stream_options={"include_drafts": True}).iter_lines() if line]
    parts = [json.loads(event) for event in events[:-1]]
    assert events[-1] == "[DONE]" and len([part for part in parts if "draft" in json.dumps(part)]) >= nfe
    deltas = [choice["delta"].get("content") or "" for part in parts for choice in part["choices"]]
    assert "".join(deltas) == text
    assert ask(messages="5 6").status_code == 400
    assert httpx.get(f"{url}/health").json()["slots"] == 8 and "<html" in httpx.get(url).text

    before = replicas()
    assert len(before) == 2
    os.kill(before[0].pid, signal.SIGKILL)
    deadline = time.time() + 120
    while len(set(replicas()) - set(before)) < 1 and time.time() < deadline:
        time.sleep(0.5)
        # The other one goes on. A request may have been on its way to the one that was lost.
        assert ask().status_code in (200, 500)
    assert len(set(replicas()) - set(before)) == 1
    serve.delete("tiny")
    assert not replicas()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": "demo", "min_replicas": 3, "max_replicas": 2}, "at most `max_replicas`, got 3 and 2"),
        ({"model": "demo", "max_time": 3}, "`max_time` is not supported"),
        ({"model": "demo", "treshold": 0.5}, "`treshold`, which is not a flag"),
        ({"model": "demo", "api_key": "secret"}, "`api_key` would be kept by Ray. Set $HF_DPARALLEL_API_KEY"),
        ({}, "the following flags are required: --model"),
    ],
)
def test_wrong_values_are_refused(values, message, capsys):
    from serve_on_ray import app

    with pytest.raises(SystemExit) as stop:
        app(values)
    assert stop.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.slow
def test_other_machines_need_a_key_that_the_replicas_have(ray_cluster, monkeypatch):
    from ray import serve
    from serve_on_ray import app

    # Where the application is built, and not where it runs.
    monkeypatch.setenv("HF_DPARALLEL_API_KEY", "secret")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serve.start(http_options={"host": "0.0.0.0", "port": port}, logging_config={"log_level": "ERROR"})
    with pytest.raises(RuntimeError, match="Deploying application tiny failed"):
        serve.run(app({"model": "demo", **VALUES}), name="tiny")
    assert "Anyone who reaches 0.0.0.0" in serve.status().applications["tiny"].deployments["Replica"].message
    serve.shutdown()
