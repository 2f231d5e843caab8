# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The page of the server, and the drafts that it draws: the protocol, in Python."""

import json
import re

import httpx
import pytest
import torch

from hf_dparallel.serving.followers import Draft
from hf_dparallel.serving.incremental_text import say_draft
from hf_dparallel.serving.web_page import render_page
from hf_dparallel_rules.settings import settings_of

from .helpers import PROBLEMS, alone, chat


def stream(server, body: dict) -> list[dict]:
    """The events of a streamed answer."""
    body = body | {"stream": True, "stream_options": {"include_drafts": True, "include_usage": True}}
    text = server.post(body).text
    events = [event.removeprefix("data: ") for event in text.strip().split("\n\n")]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


def drafts_of(events: list[dict]) -> list[dict]:
    return [choice["draft"] for event in events for choice in event["choices"] if "draft" in choice]


def redraw(drafts: list[dict]) -> list[list[dict]]:
    """What stands after each pass, by the rule of the documentation."""
    states: list[list[dict]] = [[]]
    for draft in drafts:
        states.append(states[-1][: draft["start"]] + draft["tokens"])
    return states[1:]


@pytest.mark.parametrize("settings", [{}, {"max_active_blocks": 2}, {"max_tokens": 9, "block_length": 8}])
def test_drafts_show_each_pass_and_end_as_the_answer(served, server, settings):
    events = stream(server, chat(PROBLEMS[3]) | settings)
    drafts = drafts_of(events)
    content = "".join(choice["delta"].get("content", "") for event in events for choice in event["choices"])
    usage = events[-1]["usage"]
    assert [draft["nfe"] for draft in drafts] == list(range(1, usage["nfe"] + 1))
    states = redraw(drafts)
    assert "".join(token["text"] or "" for token in states[-1]) == content
    if not settings:
        assert len(states[-1]) == usage["completion_tokens"] and content == alone(served, PROBLEMS[3])[0]
    for number, state in enumerate(states, start=1):
        steps = [token["commit_step"] for token in state]
        assert all(step is None or step < number for step in steps) and number - 1 in steps
        assert all((token["text"] is None) == (token["commit_step"] is None) for token in state)
    # Without revision, what stands remains.
    for before, after in zip(states, states[1:], strict=False):
        assert all(old == new for old, new in zip(before, after, strict=False) if old["text"] is not None)
    # Tokens are decided in any order, so drafts show more than the text that is sure.
    if not settings:
        assert any(token["text"] is not None for state in states for token in state[len(state) - 1 :])


def test_drafts_say_how_confident_the_masks_are(served, server):
    ids = served.tokenizer.apply_chat_template(chat(PROBLEMS[3])["messages"], add_generation_prompt=True)["input_ids"]
    shown = {"output_certainty": True, "return_dict_in_generate": True}
    out = served.model.generate(torch.tensor([ids]), served.generation_config, **shown)
    states = redraw(drafts_of(stream(server, chat(PROBLEMS[3]))))
    told = [
        (token["confidence"], confidences[place])
        for state, confidences in zip(states, out.confidences[0].tolist(), strict=False)
        for place, token in enumerate(state)
        if token["text"] is None
    ]
    assert len(told) > 20 and all(said == round(true, 3) for said, true in told)


def test_text_of_drafts(byte_tokenizer):
    ids = byte_tokenizer("a é b")["input_ids"]  # the bytes of é are two tokens
    first = say_draft(byte_tokenizer, Draft(0, [*ids[:3], 0, *ids[4:]], [0, 0, 1, -1, 1, 0]))
    assert [token["text"] for token in first] == ["a", " ", "", None, " ", "b"]
    second = say_draft(byte_tokenizer, Draft(3, ids[3:], [2, 1, 0], ids[2:3]))
    assert [token["commit_step"] for token in second] == [2, 1, 0] and second[1]["text"] == " "
    whole = say_draft(byte_tokenizer, Draft(0, ids, [0] * 6))
    assert "".join(token["text"] for token in whole) == "a é b"


def test_a_draft_may_change_what_stood(byte_tokenizer):
    """With revision a decided token can become another one, or a mask again, until its block is left."""
    a, b = byte_tokenizer("ab")["input_ids"]
    drafts = [Draft(0, [a, a], [0, 0]), Draft(0, [b, 0], [1, -1]), Draft(0, [b, b], [1, 2])]
    states = redraw([{"start": draft.start, "tokens": say_draft(byte_tokenizer, draft)} for draft in drafts])
    assert [[token["text"] for token in state] for state in states] == [["a", "a"], ["b", None], ["b", "b"]]


def test_the_page_is_one_file_that_runs_its_own_script_only(server):
    answer = httpx.get(f"{server.url}/")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and policy.count("'sha256-") == 2
    page = answer.text
    assert not re.findall(r"(?:src|href)=\"(?!data:)", page) and "://" not in page
    # Text of a model or a user never becomes markup.
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", page)
    rules = json.loads(re.search(r'<script id="rules" type="application/json">(.*?)</script>', page)[1])
    assert list(rules) == list(settings_of("rule")) and page == render_page()[0]
