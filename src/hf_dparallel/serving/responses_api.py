# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""OpenAI's newer endpoint, `/v1/responses`: its requests as chats, and its objects.

Nothing is stored: `previous_response_id` is refused, as clients may send the conversation.
"""

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

from .requests import CompletionRequest, RequestError, ServedModel, read_chat_request
from .responses import Answer, Part, error_body


# What the fields of a chat are called here.
_NAMES = {"input": "messages", "max_output_tokens": "max_tokens", "text": "response_format"}
_NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "truncation": ("disabled",),
    "background": (False,),
}
# What is told beside the text of an answer, if a request says so.
_INCLUDABLE = ["message.output_text.logprobs"]
# Responses are not stored, whatever a client wishes; it is told so.
_IGNORED = ("store",)
_TEXT_PARTS = ("input_text", "output_text")


def read_responses_request(body: dict[str, Any], served: ServedModel, max_prompts: int) -> CompletionRequest:
    """Reads the body of `/v1/responses`.

    Raises:
        RequestError: if it cannot be answered as it is meant.
    """
    for name in (
        "messages",
        "max_tokens",
        "max_completion_tokens",
        "n",
        "stop",
        "stream_options",
        "logprobs",
        "response_format",
    ):
        if name in body:
            raise RequestError(f"`{name}` is a field of /v1/chat/completions. Leave it out.", name)
    for name, allowed in _NEUTRAL_VALUES.items():
        if body.get(name) is not None and body[name] not in allowed:
            raise RequestError(f"`{name}` is supported as {json.dumps(allowed[0])} only. Leave it out.", name)
    include = body.get("include") or []
    if not isinstance(include, list) or any(name not in _INCLUDABLE for name in include):
        raise RequestError(f"`include` is supported as {json.dumps(_INCLUDABLE)} only. Leave it out.", "include")
    skipped = {"instructions", "include", *_NEUTRAL_VALUES, *_IGNORED}
    chat = {_NAMES.get(name, name): value for name, value in body.items() if name not in skipped}
    chat["messages"] = _messages(body.get("instructions"), body.get("input"))
    chat["response_format"] = _response_format(body.get("text"))
    chat["logprobs"] = bool(include or body.get("top_logprobs"))
    try:
        return read_chat_request(chat, served, max_prompts)
    except RequestError as error:
        message, param = str(error), error.param
        for name, chat_name in _NAMES.items():
            message = message.replace(f"`{chat_name}", f"`{name}")
            param = param and param.replace(chat_name, name)
        raise RequestError(message, param, error.status, error.code) from error


class ResponsesForm:
    """The objects that answer one request to `/v1/responses`, whole or as events.

    Args:
        model_name (`str`): the name of the model that answers.
    """

    def __init__(self, model_name: str):
        self._head = {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "model": model_name,
            "error": None,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": False,
            "store": False,
            "tool_choice": "none",
            "tools": [],
        }
        self._message_id = f"msg_{uuid.uuid4().hex}"
        self._place = {"item_id": self._message_id, "output_index": 0, "content_index": 0}
        self._num_events = 0

    def whole(self, answers: list[Answer], usage: dict[str, Any]) -> dict[str, Any]:
        """The whole response."""
        (answer,) = answers
        is_cut = answer.finish_reason == "length"
        return self._head | {
            "status": "incomplete" if is_cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": [self._message("incomplete" if is_cut else "completed", [_part(answer.text, answer.logprobs)])],
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
                "nfe": usage["nfe"],
                "tokens_per_forward": usage["tokens_per_forward"],
            },
        }

    def first_events(self) -> Iterator[str]:
        """What a stream begins with."""
        begun = self._head | {"status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
        yield self._event("response.created", response=begun)
        yield self._event("response.output_item.added", output_index=0, item=self._message("in_progress", []))
        yield self._event("response.content_part.added", **self._place, part=_part("", []))

    def events(self, part: Part) -> Iterator[str]:
        """What follows in the answer; its end is that of the response."""
        if not part.is_empty:
            yield self._event("response.output_text.delta", **self._place, delta=part.text, logprobs=part.logprobs)

    def last_events(self, answers: list[Answer], usage: dict[str, Any]) -> Iterator[str]:
        """The end of the response."""
        response = self.whole(answers, usage)
        (item,) = response["output"]
        (part,) = item["content"]
        yield self._event("response.output_text.done", **self._place, text=part["text"], logprobs=part["logprobs"])
        yield self._event("response.content_part.done", **self._place, part=part)
        yield self._event("response.output_item.done", output_index=0, item=item)
        yield self._event(f"response.{response['status']}", response=response)

    def error_event(self, error: RequestError) -> str:
        """The end of a stream that cannot be finished."""
        told = error_body(error)["error"]
        return self._event("error", code=told["code"], message=told["message"], param=told["param"])

    def _message(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._message_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _event(self, kind: str, **fields: Any) -> str:
        event = {"type": kind, "sequence_number": self._num_events, **fields}
        self._num_events += 1
        return f"event: {kind}\ndata: {json.dumps(event)}\n\n"


def _response_format(text: Any) -> Any:
    """The format of the text as that of a chat, which has a schema one level deeper."""
    if text is not None and (not isinstance(text, dict) or set(text) != {"format"}):
        raise RequestError("`text` must be an object that has `format` only.", "text")
    form = text and text["format"]
    if isinstance(form, dict) and form.get("type") == "json_schema":
        schema = {name: value for name, value in form.items() if name != "type"}
        return {"type": "json_schema", "json_schema": schema}
    return form


def _messages(instructions: Any, given: Any) -> Any:
    """The conversation as that of a chat, whose checks refuse what is wrong with it."""
    if instructions is not None and not isinstance(instructions, str):
        raise RequestError("`instructions` must be a text.", "instructions")
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(messages, list) or not messages:
        raise RequestError("`input` must be a text or a list with at least one message.", "input")
    system = [] if instructions is None else [{"role": "system", "content": instructions}]
    return [*system, *map(_message, messages)]


def _message(item: Any) -> Any:
    if not isinstance(item, dict) or item.get("type", "message") != "message":
        raise RequestError("Each item of `input` must be a message.", "input")
    message = {name: value for name, value in item.items() if name not in ("type", "id", "status")}
    if isinstance(message.get("content"), list):
        message["content"] = [
            {"type": "text", "text": part.get("text")}
            if isinstance(part, dict) and part.get("type") in _TEXT_PARTS
            else part
            for part in message["content"]
        ]
    return message


def _part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
