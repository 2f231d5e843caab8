# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Random requests, most of them wrong: each is answered, and the server lives on."""

import json
import random
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from hf_dparallel_rules.settings import SETTINGS

from .helpers import running


NUMBERS = (0, 1, 2, 7, 32, 48, 64, -1, 0.5, 1.5, 1e-300, 1e400, -1e400, float("nan"), 2**31, 2**53, 2**64, 10**309)
TEXTS = ("", "a", "Mia has 14 pens .", "<|mdm_mask|>", "<|eot_id|>system", "\ud800", "\0", "é漢😀", "a" * 5000)
OTHERS = ("dual", "prefix", None, True, False, [], {}, [1], [[1]], ["a"], {"a": 1}, [None], [[]] * 9)
NAMES = ("messages", "model", "max_tokens", "max_completion_tokens", "stop", "stream", "stream_options")
NUMBERED = ("seed", "n", "logprobs", "top_logprobs")
TYPES = ("object", "object", "array", "string", "integer", "number", "boolean", "null", ["string", "null"], "any")
LIMITS = ("minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum", "multipleOf", "minProperties")
PATTERNS = ("^a{99999}$", "^(a{99}){99}$", "^.*[a-m].{200}$", "(a+)+$", "((", "^(?=a)", r"\p{L}{1,99}", "^[a-c]{2}$")
UNSUPPORTED = ("tools", "response_format", "user", "unknown")


def random_value(rng: random.Random):
    return rng.choice(rng.choice((NUMBERS, TEXTS, OTHERS)))


def random_message(rng: random.Random):
    if rng.random() < 0.1:
        return random_value(rng)
    role = rng.choice(("system", "developer", "user", "assistant", "user", "tool"))
    return {"role": role, "content": rng.choice(TEXTS) if rng.random() < 0.9 else random_value(rng)}


def random_schema(rng: random.Random, depth: int = 3):
    """Any keywords with values of the right type or not, also such as multiply what must be written."""
    parts = [random_schema(rng, depth - 1) if depth else random_value(rng) for _ in range(rng.randrange(3))]
    values = {
        **dict.fromkeys(LIMITS, rng.choice((*NUMBERS, 10**6))),
        "type": rng.choice(TYPES),
        "pattern": rng.choice(PATTERNS),
        "format": rng.choice(("date", "uri", "email", "")),
        "enum": [random_value(rng) for _ in range(rng.choice((0, 2, 300)))],
        "const": random_value(rng),
        "properties": {rng.choice(TEXTS) + str(n): part for n, part in enumerate(parts)},
        "$defs": dict(zip("ab", parts, strict=False)),
        "$ref": rng.choice(("#", "#/$defs/a", "#/$defs/b", "http://127.0.0.1:1/x", "")),
        **dict.fromkeys(("items", "additionalProperties", "not"), random_schema(rng, depth - 1) if depth else True),
        **dict.fromkeys(("anyOf", "allOf", "oneOf", "prefixItems"), parts),
    }
    names = rng.choices(list(values), k=rng.randrange(5))
    return random_value(rng) if rng.random() < 0.05 else {name: values[name] for name in ("type", *names)}


def random_body(rng: random.Random) -> bytes:
    """A request that could be answered, and in it up to four fields that hold anything."""
    body = {"max_tokens": rng.choice((1, 5, 40))}
    form = {"type": "json_schema", "schema": random_schema(rng)} if rng.random() < 0.5 else {"type": "text"}
    body["messages"] = [random_message(rng) for _ in range(rng.randrange(4))]
    body["response_format"] = {"type": form.pop("type"), "json_schema": form} if len(form) > 1 else form
    for name in rng.choices((*NAMES, *NUMBERED, *UNSUPPORTED, *SETTINGS), k=rng.randrange(5)):
        body[name] = random_value(rng)
    content = json.dumps(body).encode()
    return content[: rng.randrange(len(content))] if rng.random() < 0.05 else content


def answer_status(url: str, seed: int) -> int:
    rng = random.Random(seed)
    headers = {"Content-Type": "application/json"}
    response = httpx.post(f"{url}/v1/chat/completions", content=random_body(rng), headers=headers, timeout=300)
    if "text/event-stream" in response.headers["content-type"]:
        events = response.text.strip().split("\n\n")
        assert events[-1] == "data: [DONE]" or "error" in events[-1], seed
    return response.status_code


@pytest.mark.parametrize(
    ("name", "num_requests"),
    [
        ("served_json", 60),
        pytest.param("served", 2000, marks=pytest.mark.slow),
        pytest.param("served_json", 5000, marks=pytest.mark.slow),
    ],
)
def test_random_requests_leave_the_server_alive(request, name, num_requests):
    with running(request.getfixturevalue(name)) as server:
        with ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(lambda seed: answer_status(server.url, seed), range(num_requests)))
        unexpected = {seed: status for seed, status in enumerate(statuses) if status not in (200, 400, 404)}
        assert not unexpected and {200, 400} <= set(statuses)
        assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
        assert not server.engine.active and not server.engine.waiting
