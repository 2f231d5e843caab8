# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Function calls: which ones a request allows, and how they are parsed from the text of an answer."""

import json
import secrets
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from .json import TAGS
from .text import num_begun


_BEGIN, _END = TAGS


@dataclass
class ToolChoice:
    """The functions that an answer may call. With `must`, the whole answer is JSON: a call, or its arguments."""

    tools: list[dict[str, Any]]
    must: bool

    def schema(self) -> dict[str, Any]:
        """Returns the JSON schema of an answer that must call: the arguments of the only function, or a call."""
        return _parameters(self.tools[0]) if len(self.tools) == 1 else self.schema_of_call()

    def schema_of_call(self) -> dict[str, Any]:
        """Returns the JSON schema of a call: an object with the name and the arguments."""
        calls = []
        for index, tool in enumerate(self.tools):
            # References in a schema are from its own root, which moves.
            place = f'"$ref": "#/anyOf/{index}/properties/arguments'
            arguments = json.loads(json.dumps(_parameters(tool)).replace('"$ref": "#', place))
            properties = {"name": {"const": tool["function"]["name"]}, "arguments": arguments}
            calls.append({"type": "object", "properties": properties})
        return {"anyOf": calls}

    def read(self, text: str, is_whole: bool) -> tuple[str, list[dict[str, Any]]]:
        """Returns the content of an answer, without what is or may become a call; of a whole answer, also its calls.

        If a call in a whole answer is invalid or cut off, all is content.
        """
        content, begin, _ = ("" if self.must else text).partition(_BEGIN)
        if not is_whole:
            num_held = 0 if begin else num_begun(content, [_BEGIN])
            return content[: len(content) - num_held], []
        names = [tool["function"]["name"] for tool in self.tools]
        parts = [text] if self.must else [part.partition(_END)[0] for part in text.split(_BEGIN)[1:]]
        calls = []
        for part in parts:
            try:
                call = from_json(part.strip(), allow_inf_nan=False)
            except ValueError:
                return text, []
            if self.must and len(names) == 1:
                call = {"name": names[0], "arguments": call}
            if not isinstance(call, dict) or call.get("name") not in names or "arguments" not in call:
                return text, []
            function = {"name": call["name"], "arguments": json.dumps(call["arguments"], ensure_ascii=False)}
            calls.append({"id": secrets.token_hex(5)[:9], "type": "function", "function": function})
        return (content, calls) if calls else (text, [])


def _parameters(tool: dict[str, Any]) -> dict[str, Any]:
    return tool["function"].get("parameters") or {"type": "object", "properties": {}}
