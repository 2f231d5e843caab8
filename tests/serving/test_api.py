# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The server as its clients see it: the openai client, curl, many at a time, and those that misbehave."""

import asyncio
import dataclasses
import json
import logging
import threading
import time

import httpx
import openai
import pytest
import torch

from hf_dparallel import DiffusionGenerationConfig

from .helpers import PROBLEMS, Gate, alone, chat, running, wait_for


@pytest.fixture(scope="module")
def served(served):
    """With answers of few passes."""
    recipe = DiffusionGenerationConfig(entropy_threshold=2.0, max_new_tokens=32, block_length=16)
    return dataclasses.replace(served, generation_config=recipe)


@pytest.fixture(scope="module")
def server(served):
    with running(served) as server:
        yield server


@pytest.fixture
def client(server):
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def expected(served):
    """What `generate` gives for the first problem."""
    return alone(served, PROBLEMS[0])


def test_chat_completion(expected, client):
    text, prompt_tokens, completion_tokens, nfe, finish_reason = expected
    answer = client.chat.completions.create(**chat(PROBLEMS[0]))
    assert answer.object == "chat.completion" and answer.model == "demo" and answer.id.startswith("chatcmpl-")
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", text, finish_reason)
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (prompt_tokens, completion_tokens)
    assert usage.total_tokens == prompt_tokens + completion_tokens and usage.nfe == nfe
    assert usage.tokens_per_forward == pytest.approx(completion_tokens / nfe, abs=1e-4)


def test_streamed_chat_completion(expected, client):
    text, _, completion_tokens, nfe, finish_reason = expected
    asked = chat(PROBLEMS[0]) | {"stream": True}
    chunks = list(client.chat.completions.create(**asked, stream_options={"include_usage": True}))
    contents = [chunk.choices[0].delta.content for chunk in chunks[:-1]]
    assert "".join(contents) == text and len(list(filter(None, contents))) > 1
    assert chunks[0].object == "chat.completion.chunk"
    # Clients join the fields of deltas, so a role in each would be "assistantassistant".
    roles = [chunk.choices[0].delta.role for chunk in chunks[:-1]]
    assert roles == ["assistant"] + [None] * (len(roles) - 1)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks[:-1]]
    assert reasons == [None] * (len(chunks) - 2) + [finish_reason]
    assert not chunks[-1].choices and chunks[-1].usage.completion_tokens == completion_tokens
    assert chunks[-1].usage.nfe == nfe and len({chunk.id for chunk in chunks}) == 1
    without = list(client.chat.completions.create(**asked))
    assert all(chunk.usage is None and chunk.choices for chunk in without)


def test_a_second_turn_after_the_helper_of_openai(client):
    asked = chat(PROBLEMS[0])
    with client.chat.completions.stream(**asked) as stream:
        message = stream.get_final_completion().choices[0].message
    whole = client.chat.completions.create(**asked).choices[0].message
    assert (message.role, message.content, message.refusal) == ("assistant", whole.content, None)
    assert client.chat.completions.create(**asked | {"messages": [*asked["messages"], message, *asked["messages"]]})


def test_extra_body_stop_and_max_tokens(served, client, expected):
    text, nfe = expected[0], expected[3]
    slower = client.chat.completions.create(**chat(PROBLEMS[0]), extra_body={"entropy_threshold": 0.5})
    assert slower.usage.nfe == alone(served, PROBLEMS[0], entropy_threshold=0.5)[3] > nfe
    words = served.tokenizer.tokenize(text)
    stopped = client.chat.completions.create(**chat(PROBLEMS[0]), stop=[f" {words[5]}", "never"]).choices[0]
    assert stopped.message.content == text[: text.index(f" {words[5]}")] and stopped.finish_reason == "stop"
    short = client.chat.completions.create(**chat(PROBLEMS[0]), max_tokens=4)
    assert short.choices[0].message.content == served.tokenizer.convert_tokens_to_string(words[:4])
    assert short.choices[0].finish_reason == "length" and short.usage.completion_tokens == 4


def test_logprobs(expected, client):
    text, _, num_tokens, *_ = expected
    asked = chat(PROBLEMS[0]) | {"logprobs": True, "top_logprobs": 2}
    (choice,) = client.chat.completions.create(**asked).choices
    whole = choice.logprobs.content
    assert len(whole) == num_tokens and b"".join(bytes(each.bytes) for each in whole).decode() == text
    # At temperature 0 each token is the likeliest one.
    assert all(each.top_logprobs[0].model_dump() == each.model_dump(exclude={"top_logprobs"}) for each in whole)
    assert all(each.top_logprobs[0].logprob >= each.top_logprobs[1].logprob for each in whole)
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**asked, stream=True)]
    assert [each for chunk in chunks if chunk.logprobs for each in chunk.logprobs.content] == whole
    stopped = client.chat.completions.create(**asked, stop=[whole[3].token]).choices[0].logprobs.content
    assert stopped == whole[:4]


def test_models(client):
    (model,) = client.models.list()
    assert (model.id, model.object, model.max_model_len) == ("demo", "model", 768)
    with pytest.raises(openai.NotFoundError, match="`other` does not exist. This server has `demo`"):
        client.chat.completions.create(**chat("x") | {"model": "other"})
    with pytest.raises(openai.NotFoundError, match="`3` does not exist"):
        client.chat.completions.create(**chat("x") | {"model": 3})


def test_many_streams_at_once_give_what_each_gives_alone(served, server):
    async def ask(client, problem):
        stream = await client.chat.completions.create(
            **chat(problem), stream=True, stream_options={"include_usage": True}
        )
        text, usage = "", None
        async for chunk in stream:
            usage = chunk.usage or usage
            text += "".join(choice.delta.content for choice in chunk.choices)
        return text, usage

    async def ask_all():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, problem) for problem in PROBLEMS[:16]))

    with Gate(served.model) as gate:
        gate.open.set()
        answers = asyncio.run(ask_all())
    # Every fourth stands for the others.
    for problem, (text, usage) in list(zip(PROBLEMS, answers, strict=False))[::4]:
        assert (text, usage.prompt_tokens, usage.completion_tokens, usage.nfe) == alone(served, problem)[:4]
    # They shared the passes: alone, each pass has one row.
    assert sum(usage.nfe for _, usage in answers) > 3 * len(gate.rows)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_disconnects_frees_its_slot(served, stream):
    with running(served, num_slots=1) as server, Gate(served.model) as gate:
        body = json.dumps(chat(PROBLEMS[0]) | {"stream": stream}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        engine = server.engine
        with server.connect() as first, server.connect() as second:
            for connection, number in ((first, 1), (second, 2)):
                connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
                wait_for(lambda number=number: len(engine.active) + len(engine.waiting) == number)
            wait_for(lambda: (len(engine.active), len(engine.waiting)) == (1, 1))
        wait_for(lambda: all(prompt.is_given_up for prompt in (*engine.active.values(), *engine.waiting)))
        gate.open.set()
        wait_for(lambda: (len(engine.active), len(engine.waiting)) == (0, 0))
        # The second never ran, and the first did not run to its end.
        assert len(gate.rows) < 5
        assert server.post(chat(PROBLEMS[0])).status_code == 200


def test_overload_is_429_and_passes(served):
    with running(served, num_slots=1, max_waiting=1) as server, Gate(served.model) as gate:
        with server.client() as client:
            answers = []
            for number in (1, 2):
                thread = threading.Thread(
                    target=lambda: answers.append(client.chat.completions.create(**chat(PROBLEMS[0])))
                )
                thread.start()
                wait_for(lambda number=number: len(server.engine.active) + len(server.engine.waiting) == number)
            wait_for(lambda: len(server.engine.active) == 1)
            for stream in (True, False):
                with pytest.raises(openai.RateLimitError, match="1 of at most 1 wait. Try again") as refused:
                    client.chat.completions.create(**chat(PROBLEMS[0]), stream=stream)
                assert refused.value.code == "overloaded" and refused.value.response.headers["retry-after"] == "1"
            gate.open.set()
            wait_for(lambda: len(answers) == 2)
            assert client.chat.completions.create(**chat(PROBLEMS[0])).choices == answers[0].choices


def test_api_key(served):
    with running(served, api_key="sécret") as server:
        for key in ("wrong", "sécret?", "secret"):
            headers = {"Authorization": f"Bearer {key}".encode()}
            for method, path in (("GET", "/v1/models"), ("POST", "/v1/chat/completions")):
                refused = httpx.request(method, f"{server.url}{path}", headers=headers, json=chat("x"))
                assert refused.status_code == 401 and refused.json()["error"]["code"] == "invalid_api_key"
        assert httpx.get(f"{server.url}/health").status_code == 200
        for scheme, status in (("Bearer ", 200), ("bearer ", 200), ("BEARER ", 200), ("", 401), ("Basic ", 401)):
            headers = {"Authorization": f"{scheme}sécret".encode("latin-1")}
            assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == status, scheme
        with server.client("wrong") as client:
            with pytest.raises(openai.AuthenticationError, match="The API key is missing or wrong"):
                client.models.list()


def test_errors_have_the_form_of_openai(client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**chat("x"), presence_penalty=1)
    assert refused.value.body == {
        "message": "`presence_penalty=1` is not supported. Leave it out.",
        "type": "invalid_request_error",
        "param": "presence_penalty",
        "code": None,
    }
    # Hints of OpenAI's that a server may leave aside.
    assert client.chat.completions.create(**chat("x"), reasoning_effort="low", verbosity="low").choices


@pytest.mark.parametrize(
    ("content", "content_type", "status", "message"),
    [
        (b"{", "application/json", 400, "The body is not valid JSON"),
        (b"[1]", "application/json", 400, "The body must be a JSON object"),
        (b"\xff", "application/json", 400, "The body is not valid JSON"),
        (rb'{"messages": "\ud800"}', "application/json", 400, "The body is not valid JSON"),
        (b"[" * 100_000, "application/json", 400, "The body is not valid JSON"),
        (b'{"temperature": ' + b"[" * 500 + b"]" * 500 + b"}", "application/json", 400, "The body is not valid JSON"),
        (b'{"temperature": NaN}', "application/json", 400, "The body is not valid JSON"),
        (b"{}", "text/plain", 415, "Send the header `Content-Type: application/json`"),
        (b"{}", None, 415, "Send the header `Content-Type: application/json`"),
        (b" " * (2**20 + 1), "application/json", 413, "longer than 1048576 bytes"),
    ],
)
def test_bodies_that_are_refused(server, content, content_type, status, message):
    headers = {"Content-Type": content_type} if content_type else {}
    answer = httpx.post(f"{server.url}/v1/chat/completions", content=content, headers=headers)
    assert answer.status_code == status and message in answer.json()["error"]["message"]


def test_a_request_of_two_lengths_is_refused_and_closed(server):
    """A proxy before the server may read the other one, and its rest as a further request (RFC 9112, 6.1)."""
    head = b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    with server.connect() as connection:
        connection.sendall(head + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(2**16), b""))
    assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("begun", [b'{"mess', b""])
def test_a_client_that_leaves_while_it_sends_is_no_error(served, begun, caplog):
    with running(served) as server:
        # uvicorn's log goes to no other.
        logging.getLogger("uvicorn.error").addHandler(caplog.handler)
        for _ in range(2):
            head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            with server.connect() as connection:
                connection.sendall(f"{head}Content-Length: 50\r\n\r\n".encode() + begun)
                wait_for(lambda: server.server.server_state.tasks)
            wait_for(lambda: not server.server.server_state.tasks)
        logging.getLogger("uvicorn.error").removeHandler(caplog.handler)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("LOCALHOST:80", 200), ("127.0.0.1:8000", 200), ("[::1]:8000", 200), ("[::1]", 200),
        ("evil.example", 403), ("evil.example:8000", 403), ("localhost.evil.example", 403), ("127.0.0.1.nip.io", 403),
        ("[::1", 403), ("localhost:", 403), ("", 403), ("[::2]:8000", 403), ("x@localhost", 403),
    ],
)  # fmt: skip
def test_other_names_of_this_machine_are_refused(served, host, status):
    """A page of a site whose name is made to mean this machine would be of the origin of the server."""
    with running(served, is_local=True) as server:
        answers = [
            httpx.get(f"{server.url}/v1/models", headers={"Host": host}),
            httpx.post(f"{server.url}/v1/chat/completions", headers={"Host": host}, json=chat("x")),
        ]
        assert [answer.status_code for answer in answers] == [status] * 2
        if status == 403:
            assert "Send the header `Host: localhost`" in answers[0].json()["error"]["message"]
    with running(served) as server:
        assert httpx.get(f"{server.url}/v1/models", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/nothing", 404), ("GET", "/v1/chat/completions", 405), ("POST", "/v1/completions", 404)],
)
def test_unknown_paths(server, method, path, status):
    answer = httpx.request(method, f"{server.url}{path}")
    assert answer.status_code == status and "The endpoints are /v1/chat" in answer.json()["error"]["message"]


def test_failures_of_the_decoding_are_500_and_pass(served, caplog):
    def fail(*args):
        raise torch.OutOfMemoryError("secret details")

    with running(served) as server:
        hook = served.model.model.register_forward_pre_hook(fail)
        try:
            answer = server.post(chat("x"))
            stream = server.post(chat("x") | {"stream": True})
        finally:
            hook.remove()
        assert answer.status_code == 500
        assert answer.json()["error"]["message"].startswith(
            "The request failed with OutOfMemoryError. The server's log"
        )
        last = stream.text.strip().split("\n\n")[-1].removeprefix("data: ")
        assert json.loads(last)["error"]["type"] == "server_error"
        assert server.post(chat("x")).status_code == 200


@pytest.mark.parametrize(
    "fields",
    [{"messages": [{"role": "user", "content": "a"}] * 5_000}, {f"a{n}": n for n in range(60_000)}],
    ids=("messages", "fields"),
)
def test_no_body_keeps_others_waiting(server, fields):
    content = json.dumps(chat("x") | fields).encode()
    # A machine that is busy with other things may keep one waiting, too.
    assert any(longest_wait(server, f"{server.url}/v1/chat/completions", content) < 1 for _ in range(3))


def longest_wait(server, url: str, content: bytes) -> float:
    """How long /health takes at most while a request is answered."""
    headers, answers, longest = {"Content-Type": "application/json"}, [], 0.0
    thread = threading.Thread(
        target=lambda: answers.append(httpx.post(url, content=content, headers=headers, timeout=120).status_code)
    )
    thread.start()
    with httpx.Client() as client:
        while thread.is_alive():
            start = time.perf_counter()
            assert client.get(f"{server.url}/health").status_code == 200
            longest = max(longest, time.perf_counter() - start)
            time.sleep(0.01)
    assert answers[0] in (200, 400)
    return longest


def test_health_and_shutdown(served):
    with running(served, num_slots=2) as server:
        server.post(chat(PROBLEMS[1]))
        health = httpx.get(f"{server.url}/health").json()
        assert health == {"status": "ok"}
        server.engine.close()
        assert httpx.get(f"{server.url}/health").status_code == 503
        answer = server.post(chat("x"))
        assert answer.status_code == 503 and "shutting down" in answer.json()["error"]["message"]


def test_answers_under_way_are_finished_before_the_end(served):
    with running(served) as server:
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=chat(PROBLEMS[0]) | {"stream": True}) as s:
            lines = s.iter_lines()
            next(lines)
            server.server.should_exit = True
            assert "data: [DONE]" in list(lines)
