# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Tools: calls that must come are always valid, the others are read from the text; templates see both."""

import copy
import dataclasses
import json
import re

import openai
import pytest
from tokenizers import AddedToken

from hf_dparallel.serving.api import Completion
from hf_dparallel.serving.engine import Progress, RequestError
from hf_dparallel.serving.json import TAGS


PRICE = {"$ref": "#/$defs/price"}
PURCHASE = {
    "type": "object",
    "properties": {"how many": {"type": "integer", "minimum": 0, "maximum": 99}, "price": PRICE},
    "$defs": {"price": {"enum": [1, 2]}},
}
TOOLS = [
    {"type": "function", "function": {"name": "buy", "description": "Buys pens.", "parameters": PURCHASE}},
    {"type": "function", "function": {"name": "wait"}},
]
ODD = {"type": "function", "function": {"name": "odd", "parameters": {"multipleOf": 3}}}
NAMED = {"type": "function", "function": {"name": "buy"}}
MESSAGES = [{"role": "user", "content": "Three pens, please."}]
CALL = {"id": "call_1", "type": "function", "function": {"name": "buy", "arguments": '{"how many": 3}'}}
ARGUMENTS = '{"how many": 3, "price": 1}'
# Tags as texts in JSON.
BEGIN, END = '"<tool_call>"', '"</tool_call>"'
TAGGED = f'<tool_call>\n{{"name": "buy", "arguments": {ARGUMENTS}}}\n</tool_call>'


def ask(client, **fields):
    """The choice, after a comparison with the stream."""
    asked = {"model": "tiny", "messages": MESSAGES, "tools": TOOLS} | fields
    (choice,) = client.chat.completions.create(**asked).choices
    with client.chat.completions.stream(**asked) as stream:
        (streamed,) = stream.get_final_completion().choices
    assert streamed.finish_reason == choice.finish_reason
    assert (streamed.message.content or None) == choice.message.content
    calls = [[call.function for call in each.message.tool_calls or ()] for each in (choice, streamed)]
    assert [(call.name, call.arguments) for call in calls[0]] == [(call.name, call.arguments) for call in calls[1]]
    return choice


def test_calls_that_must_come(json_server):
    with json_server.client() as client:
        for choice, tools in ((NAMED, TOOLS), ("required", TOOLS[:1]), ("required", TOOLS)):
            answer = ask(client, tool_choice=choice, tools=tools)
            (call,) = answer.message.tool_calls
            arguments = json.loads(call.function.arguments)
            assert answer.finish_reason == "tool_calls" and answer.message.content is None
            assert re.fullmatch("[a-zA-Z0-9]{9}", call.id) and call.type == "function"
            if call.function.name == "buy":
                assert list(arguments) == ["how many", "price"] and arguments["price"] in (1, 2)
            else:
                assert (call.function.name, arguments, len(tools)) == ("wait", {}, 2)
        asked = {"model": "tiny", "messages": MESSAGES, "tools": TOOLS, "tool_choice": NAMED, "max_tokens": 20}
        (cut,) = client.chat.completions.create(**asked).choices
        assert (
            cut.finish_reason == "length"
            and cut.message.tool_calls is None
            and cut.message.content.startswith("<tool_call>")
        )
        asked = {"model": "tiny", "messages": MESSAGES}
        plain = client.chat.completions.create(**asked)
        (choice,) = client.chat.completions.create(**asked, tools=TOOLS, tool_choice="none").choices
        assert choice.message.content == plain.choices[0].message.content
        with pytest.raises(openai.BadRequestError, match="The chat template does not use `tools`"):
            client.chat.completions.create(**asked, tools=TOOLS)


def answer_to(text: str, served) -> tuple[str, list, list]:
    """What is told of an answer that comes token by token: its content, its calls and its ends."""
    asked = {"messages": MESSAGES, "tools": TOOLS[:1], "tool_choice": "required"}
    ids, choice = served.tokenizer(text)["input_ids"], Completion(asked, served)
    choice._tools = TOOLS
    parts, ends = [], []
    for number, token_id in enumerate([*ids, None]):
        is_end = token_id is None
        progress = Progress([] if is_end else [token_id], number, "stop" if is_end else None)
        parts.append(choice.add(progress)["delta"]["content"] or "")
        ends += filter(None, [choice.finish_reason])
    assert choice.content == "".join(parts)
    return choice.content, [(call["function"]["name"], call["function"]["arguments"]) for call in choice.calls], ends


def test_tags_may_be_special_tokens(served_json, tokenizer):
    """Which are no part of other answers."""
    special = copy.deepcopy(tokenizer)
    special.add_tokens([AddedToken(tag, special=True, normalized=False) for tag in TAGS], special_tokens=True)
    served = dataclasses.replace(served_json, tokenizer=special)
    assert special.decode(special(TAGGED)["input_ids"], skip_special_tokens=True)[0] == "\n"
    assert answer_to(f"Well. {TAGGED}<eos>", served) == ("Well. ", [("buy", ARGUMENTS)], ["tool_calls"])
    plain = Completion({"messages": MESSAGES}, served)
    plain.add(Progress(special("a<tool_call>b")["input_ids"], 1, "stop"))
    assert plain.content == "ab"


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (TAGGED, "", [("buy", ARGUMENTS)]),
        (f"Well. {TAGGED}\n{TAGGED}", "Well. ", [("buy", ARGUMENTS)] * 2),
        (TAGGED.replace("3", END), "", [("buy", ARGUMENTS.replace("3", END))]),
        (f"{TAGGED}{TAGGED}".replace("3", BEGIN), "", [("buy", ARGUMENTS.replace("3", BEGIN))] * 2),
        (f"{TAGGED} Bought.", " Bought.", [("buy", ARGUMENTS)]),
        (f"So: {TAGGED}\n and {TAGGED}", "So: \n and ", [("buy", ARGUMENTS)] * 2),
        (TAGGED.removesuffix("</tool_call>"), "", [("buy", ARGUMENTS)]),
        ('<tool_call>{"name": "wait", "arguments": {}}</tool_call>', "", [("wait", "{}")]),
        ("a <tool b", None, []),
        ("a <tool_c", None, []),
        ("<tool_call>", None, []),
        (f"{TAGGED}<tool_call>{{", None, []),
        (TAGGED.replace("buy", "sell"), None, []),
        ('<tool_call>{"name": "buy"}</tool_call>', None, []),
        ("<tool_call>[1]</tool_call>", None, []),
        (TAGGED.replace("1}", "1} so"), None, []),
        (TAGGED.replace("3", "NaN"), None, []),
        (TAGGED.replace("3", "[" * 5000), None, []),
        (TAGGED.replace("3", "9" * 5000), None, []),
        (TAGGED.replace("3", '"\\ud800"'), None, []),
        ('<tool_call>{"name": ["buy"], "arguments": {}}</tool_call>', None, []),
    ],
)
def test_calls_are_read_from_the_text(served_json, text, content, calls):
    told = answer_to(text, served_json)
    assert told == (text if content is None else content, calls, ["tool_calls" if calls else "stop"])


def test_the_template_gets_tools_calls_and_results(served_json, tokenizer, monkeypatch):
    template = "{{ tools }}{% for m in messages %}{{ m.role }}{{ m.content }}{{ m.tool_calls }}{{ m.tool_call_id }}{% endfor %}"  # fmt: skip  # noqa: E501
    monkeypatch.setattr(tokenizer, "chat_template", template)

    def prompt(**fields) -> str:
        asked = {"messages": MESSAGES, "max_new_tokens": 8} | fields
        return tokenizer.decode(Completion(asked, served_json).prompt.input_ids)

    monkeypatch.setattr("hf_dparallel.serving.api.longest_sequence", lambda model: None)
    assert prompt() == prompt(tools=TOOLS, tool_choice="none") and prompt().startswith("None")
    assert prompt(tools=TOOLS) == prompt(tools=TOOLS, tool_choice="required")
    assert "Buys pens." in prompt(tools=TOOLS) and "'wait'" in prompt(tools=TOOLS)
    assert "'wait'" not in prompt(tools=TOOLS, tool_choice=NAMED)
    called = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None},
        {"role": "tool", "content": "Done.", "tool_call_id": "call_1"},
    ]
    # The arguments are an object, which templates write as JSON.
    assert "'arguments': {'how many': 3}" in prompt(messages=called) and "toolDone." in prompt(messages=called)


def test_calls_beside_a_schema(served_json, tokenizer, monkeypatch):
    """With `tool_choice` auto, an answer calls or follows the schema of `response_format`."""
    monkeypatch.setattr(tokenizer, "chat_template", "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}")
    monkeypatch.setattr("hf_dparallel.serving.api.longest_sequence", lambda model: None)
    form = {"name": "count", "schema": {"type": "object", "properties": {"n": {"type": "integer"}}}}
    form = {"type": "json_schema", "json_schema": form}
    asked = {"messages": MESSAGES, "tools": TOOLS, "response_format": form}
    request = Completion(asked, served_json)
    for text, fits in (('{"n": 3}', True), (TAGGED, True), ("3", False), (CALL, False)):
        ids = [*tokenizer(str(text))["input_ids"], tokenizer.eos_token_id]
        assert (request.prompt.json.matcher.deep_copy().validate_tokens(ids) == len(ids)) is fits


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "sell"}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "required", "function": {"name": "buy"}}}, "tool_choice"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools"),
        ({"tools": [ODD], "tool_choice": "required"}, "tools"),
        ({"tools": TOOLS, "tool_choice": "required", "stop_at_eos": False}, "tools"),
    ],
)  # fmt: skip
def test_tools_that_are_refused(served_json, fields, param):
    with pytest.raises(RequestError) as refused:
        Completion({"messages": MESSAGES} | fields, served_json)
    assert (refused.value.param, refused.value.status) == (param, 400)
