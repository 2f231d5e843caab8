# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Reads the messages of any dataset or request into the form of chat templates."""

import contextlib
import json
from collections.abc import Iterable, Mapping
from typing import Any


Message = dict[str, Any]

# The roles of chat templates, by the names that datasets give them, in lower case.
_ROLES = {role: role for role in ("user", "assistant", "system", "developer", "tool")}
_ROLES |= {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant"}
# What a message of the assistant may have beside its text, or instead of it.
CALLS = ("tool_calls", "function_call")
THOUGHTS = ("reasoning_content", "reasoning", "thinking", "thought", "thoughts")
# Names of arguments of a call that no template reads.
_UNREAD_ARGUMENTS = {"parameters", "args", "input"}
# What says whether an answer is learned: in a column of the row, or in a message.
LEARNING_COLUMNS = ("weight", "train", "train_on_turn", "loss_mask", "completion_mask", "assistant_masks")
_MASKS = ("mask", "masked")
LEARNING_MARKS = (*LEARNING_COLUMNS, "training", "train_detail", "trainable", "loss", "loss_weight", *_MASKS)


def read_messages(value: Any, name: str) -> list[Message]:
    """Reads a list of messages, and returns it with the keys and roles of chat templates.

    A message has `role` and `content`, or ShareGPT's `from` and `value`, and further keys for the template. The
    arguments of calls are objects or their JSON texts. Raises a `ValueError` for all else, with the `name` of the
    value.
    """
    if not isinstance(value, list):
        got = f"{type(value).__name__} {str(value)[:60]!r}"
        raise ValueError(f"`{name}` must be a list of messages with `role` and `content`, got the {got}.")

    last = len(value) - 1
    return [_read_message(message, f"Message {n} of `{name}`", n == last) for n, message in enumerate(value)]


def check_is_learned(marked: Mapping[str, Any], where: str, names: Iterable[str] = LEARNING_MARKS) -> None:
    """Raises a `ValueError` if a row or an answer, `where`, is marked as one that is not learned, or not as a whole.

    Datasets mark by `weight` (OpenAI, Together), `train` and `training` (axolotl), `loss` (ms-swift) and others.
    """
    for name in names:
        value = marked.get(name)
        values = value if isinstance(value, list) else [value]
        learned = {"none", "0", "0.0", "false"} if name in _MASKS else {"none", "1", "1.0", "true"}
        if not {str(each).lower() for each in values} <= learned:
            raise ValueError(
                f"{where} has `{name}`: {str(value)[:60]}, but answers are learned as a whole. Drop such rows, or "
                f"remove `{name}`."
            )


def parse_json(value: Any) -> Any:
    """Returns the value of the JSON text of a list or an object, and all else as it is."""
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def _read_message(message: Any, where: str, is_last: bool) -> Message:
    if not isinstance(message, Mapping):
        raise ValueError(f"{where} must have `role` and `content`, got {str(message)[:60]!r}.")

    # `datasets` gives every message the keys of all.
    rest = {name: value for name, value in message.items() if value not in (None, [])}
    role_key, text_key = ("role", "content") if "role" in rest else ("from", "value")
    given_role = rest.pop(role_key, None)
    role = _ROLES.get(str(given_role).lower())
    if role is None:
        raise ValueError(f"{where} has the role {given_role!r}. Rename it to one of {', '.join(_ROLES)}.")

    content = rest.pop(text_key, "")
    if isinstance(content, list):
        for part in content:
            if not isinstance(part, Mapping) or part.get("type") != "text":
                raise ValueError(f"{where} has the part {str(part)[:60]}, and these models read text only.")
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise ValueError(f"{where} must have a text as `{text_key}`, got {content!r}.")

    has_other = any(map(rest.get, (*CALLS, *THOUGHTS)))
    is_text_needed = role == "user" or (role == "assistant" and is_last and not has_other)
    if is_text_needed and not content.strip():
        raise ValueError(f"{where}, of the {role}, must not be empty: `{text_key}` is {message.get(text_key)!r}.")

    if "tool_calls" in rest:
        rest["tool_calls"] = [_read_call(call, where) for call in parse_json(rest["tool_calls"])]
    if "function_call" in rest:
        rest["function_call"] = _read_call(parse_json(rest["function_call"]), where)
    return {"role": role, "content": content, **rest}


def _read_call(call: Any, where: str) -> dict[str, Any]:
    """Returns a call with its arguments as an object. OpenAI's form has the function apart, others do not."""
    if isinstance(call, Mapping) and "function" in call:
        return {**call, "function": _read_call(call["function"], where)}
    if not isinstance(call, Mapping) or "name" not in call or _UNREAD_ARGUMENTS & call.keys():
        raise ValueError(f"{where} has the call {str(call)[:60]}, which must have `name` and `arguments`.")

    arguments = parse_json(call.get("arguments") or {})
    if not isinstance(arguments, Mapping):
        raise ValueError(
            f"{where} calls `{call['name']}` with the arguments {str(arguments)[:60]!r}. They must be an object, or "
            "its JSON text."
        )
    return {**call, "arguments": arguments}
