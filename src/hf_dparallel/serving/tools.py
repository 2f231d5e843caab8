# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Function calls: the schema of a call, and how calls are parsed from the text of an answer."""

import json
import secrets
from collections.abc import Collection
from typing import Any

from pydantic_core import from_json

from ..data.texts import num_begun
from .json import TAGS


_BEGIN, _END = TAGS
_DECODER = json.JSONDecoder()


def schema_of_call(tools: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the JSON schema of a call of one of the tools: an object with the name and the arguments."""
    calls = []
    for index, tool in enumerate(tools):
        parameters = tool["function"].get("parameters") or {"type": "object", "properties": {}}

        # References in a schema are from its own root, which moves.
        place = f'"$ref": "#/anyOf/{index}/properties/arguments'
        arguments = json.loads(json.dumps(parameters).replace('"$ref": "#', place))

        properties = {"name": {"const": tool["function"]["name"]}, "arguments": arguments}
        calls.append({"type": "object", "properties": properties})
    return {"anyOf": calls}


def read_calls(text: str, tools: list[dict[str, Any]], is_whole: bool) -> tuple[str, list[dict[str, Any]]]:
    """Returns the content of an answer, without what is or may become a call; of a whole answer, also its calls.

    If a call in a whole answer is invalid or cut off, all is content.
    """
    content, begin, rest = text.partition(_BEGIN)
    if not is_whole:
        num_held = 0 if begin else num_begun(content, [_BEGIN])
        return content[: len(content) - num_held], []

    names = [tool["function"]["name"] for tool in tools]
    calls = []
    while begin:
        try:
            call, rest = _read_call(rest, names)
        except (ValueError, RecursionError):
            return text, []
        calls.append(call)

        between, begin, rest = rest.partition(_BEGIN)
        if between.strip():
            content += between
    return content, calls


def _read_call(text: str, names: Collection[str]) -> tuple[dict[str, Any], str]:
    """Returns the call that a text begins with, after its tag, and the text after it; raises for anything else."""
    text = text.lstrip()
    # The object says where it ends: its texts may contain tags.
    _, end = _DECODER.raw_decode(text)
    rest = text[end:].lstrip()
    if rest and not rest.startswith(TAGS):
        raise ValueError("There is more than the object of a call.")

    # Stricter than `json`, which reads NaN and halves of characters.
    call = from_json(text[:end], allow_inf_nan=False)
    if not isinstance(call, dict) or call.get("name") not in names or "arguments" not in call:
        raise ValueError("The object is no call of one of the tools.")

    arguments = json.dumps(call["arguments"], ensure_ascii=False)
    told = {
        # Nine letters and digits, as templates of Mistral demand.
        "id": secrets.token_hex(5)[:9],
        "type": "function",
        "function": {"name": call["name"], "arguments": arguments},
    }
    return told, rest.removeprefix(_END)
