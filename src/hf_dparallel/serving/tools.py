# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Function calls: the schema of a call, and how calls are parsed from the text of an answer."""

import json
import secrets
from typing import Any

from pydantic_core import from_json

from .json import TAGS
from .text import num_begun


_BEGIN, _END = TAGS


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
    content, *parts = text.split(_BEGIN)
    if not is_whole:
        return content[: len(content) - (0 if parts else num_begun(content, [_BEGIN]))], []
    names, calls = [tool["function"]["name"] for tool in tools], []
    for part in parts:
        try:
            call = from_json(part.partition(_END)[0].strip(), allow_inf_nan=False)
        except ValueError:
            return text, []
        if not isinstance(call, dict) or call.get("name") not in names or "arguments" not in call:
            return text, []
        function = {"name": call["name"], "arguments": json.dumps(call["arguments"], ensure_ascii=False)}
        # Nine letters and digits, as templates of Mistral demand.
        calls.append({"id": secrets.token_hex(5)[:9], "type": "function", "function": function})
    return content, calls
