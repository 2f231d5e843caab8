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
# Other names of the arguments of a call, which no template reads.
_UNREAD_ARGUMENTS = {"parameters", "args", "input"}
# What says whether an answer is to be learned: as a column, and in a message.
LEARNING_COLUMNS = ("weight", "train", "train_on_turn", "loss_mask", "completion_mask", "assistant_masks")
_MASKS = ("mask", "masked")
LEARNING_MARKS = (*LEARNING_COLUMNS, "training", "train_detail", "trainable", "loss", "loss_weight", *_MASKS)
_SAYS_YES = ("1", "1.0", "true")
_SAYS_NO = ("0", "0.0", "false")


def read_messages(value: Any, name: str) -> list[Message]:
    """Reads a list of messages, and returns it with the keys and roles of chat templates.

    A message has `role` and `content`, or ShareGPT's `from` and `value`, and further keys for the template. The
    arguments of calls may be JSON texts, and are returned as objects. Raises a `ValueError` for all else, with the
    `name` of the value.
    """
    if not isinstance(value, list):
        got = f"{type(value).__name__} {str(value)[:60]!r}"
        raise ValueError(f"`{name}` must be a list of messages with `role` and `content`, got the {got}.")

    messages = []
    for number, message in enumerate(value):
        is_last = number == len(value) - 1
        messages.append(_read_message(message, f"Message {number} of `{name}`", is_last))
    return messages


def check_is_learned(marked: Mapping[str, Any], where: str, names: Iterable[str] = LEARNING_MARKS) -> None:
    """Raises a `ValueError` if a row or an answer, `where`, is marked as one that is not learned, or not as a whole.

    Datasets mark by `weight` (OpenAI, Together), `train` and `training` (axolotl), `loss` (ms-swift) and others.
    """
    for name in names:
        value = marked.get(name)
        if value is None:
            continue

        is_learned = _SAYS_NO if name in _MASKS else _SAYS_YES
        values = value if isinstance(value, list) else [value]
        if not all(str(each).lower() in is_learned for each in values):
            raise ValueError(
                f"{where} has `{name}`: {str(value)[:60]}, but answers are learned as a whole. Drop such rows, or "
                f"remove `{name}`."
            )


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

    content = _read_content(rest.pop(text_key, ""), where, text_key)
    has_other = any(rest.get(name) for name in (*CALLS, *THOUGHTS))
    is_text_needed = role == "user" or (role == "assistant" and is_last and not has_other)
    if is_text_needed and not content.strip():
        raise ValueError(f"{where}, of the {role}, must not be empty: `{text_key}` is {message.get(text_key)!r}.")

    if "tool_calls" in rest:
        rest["tool_calls"] = _read_calls(rest["tool_calls"], where)
    if "function_call" in rest:
        rest["function_call"] = _read_call(rest["function_call"], where)
    return {"role": role, "content": content, **rest}


def _read_content(content: Any, where: str, name: str) -> str:
    """Returns the text of a message, which may be given in parts."""
    if isinstance(content, list):
        for part in content:
            if not isinstance(part, Mapping) or part.get("type") != "text":
                raise ValueError(f"{where} has the part {str(part)[:60]}, and these models read text only.")
        content = "".join(part["text"] for part in content)

    if not isinstance(content, str):
        raise ValueError(f"{where} must have a text as `{name}`, got {content!r}.")
    return content


def _read_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise ValueError(f"{where} must have a list as `tool_calls`, got {str(calls)[:60]!r}.")

    read = []
    for call in calls:
        # OpenAI's form has the function apart, others do not.
        if isinstance(call, Mapping) and "function" in call:
            read.append({**call, "function": _read_call(call["function"], where)})
        else:
            read.append(_read_call(call, where))
    return read


def _read_call(call: Any, where: str) -> dict[str, Any]:
    """Returns the name and the arguments of a call. They are an object, which templates write as JSON."""
    if not isinstance(call, Mapping) or not isinstance(call.get("name"), str):
        raise ValueError(f"{where} has a call without `name`: {str(call)[:60]}.")
    for name in _UNREAD_ARGUMENTS & call.keys():
        raise ValueError(f"{where} calls `{call['name']}` with `{name}`. Rename it to `arguments`.")

    arguments = call.get("arguments") or {}
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    if not isinstance(arguments, Mapping):
        raise ValueError(
            f"{where} calls `{call['name']}` with the arguments {str(arguments)[:60]!r}. They must be an object, or "
            "its JSON text."
        )
    return {**call, "arguments": arguments}
