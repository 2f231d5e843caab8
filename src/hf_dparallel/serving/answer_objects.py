# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The JSON of responses, in OpenAI's form: of chats and completed texts, and of the newer `/v1/responses`."""

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .bodies import RequestError


@dataclass
class Part:
    """The next part of the answer of this number, or all of it."""

    index: int
    text: str
    # "stop", "length" or "tool_calls" at the end, which is a part of its own without text.
    finish_reason: str | None = None
    # Its tokens with their log-probabilities, if those are asked for.
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    # What stands of the answer, if drafts are asked for.
    draft: dict[str, Any] | None = None
    # The functions that it calls, which are told at its end.
    tool_calls: list[dict[str, Any]] = field(default_factory=list)


class CompletionObjects:
    """The objects that answer one request to `/v1/chat/completions` or `/v1/completions`, whole or as events.

    With `include_usage`, the last event says what the request has cost.
    """

    def __init__(self, model_name: str, include_usage: bool, is_chat: bool):
        self.is_chat = is_chat
        self.include_usage = include_usage
        prefix, self._kind = ("chatcmpl", "chat.completion") if is_chat else ("cmpl", "text_completion")
        self._head = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model_name}

    def whole(self, answers: list[Part], usage: dict[str, Any]) -> dict[str, Any]:
        """The whole response."""
        choices = [
            self._choice(each, message={"role": "assistant"} | _said(each, each.tool_calls)) for each in answers
        ]
        return self._head | {"object": self._kind, "choices": choices, "usage": usage}

    def first_events(self) -> Iterator[str]:
        """What a stream begins with."""
        if self.is_chat:
            yield self._event(self._choice(Part(0, ""), delta={"role": "assistant", "content": ""}))

    def events(self, part: Part) -> Iterator[str]:
        """The next part of an answer, or its end."""
        calls = [{"index": index} | call for index, call in enumerate(part.tool_calls)]
        yield self._event(self._choice(part, delta={} if part.finish_reason else _said(part, calls)))

    def last_events(self, answers: list[Part], usage: dict[str, Any]) -> Iterator[str]:
        """The end of all answers."""
        if self.include_usage:
            yield self._event(usage=usage)
        yield "data: [DONE]\n\n"

    def error_event(self, error: RequestError) -> str:
        """The end of a stream that cannot be finished; its status has been sent."""
        return _data(error_body(error))

    def _choice(self, part: Part, **content: Any) -> dict[str, Any]:
        """An answer or a part of it, which in a chat has this content."""
        choice = {"index": part.index, **(content if self.is_chat else {"text": part.text})}
        if part.draft is not None:
            choice["draft"] = part.draft
        logprobs = {"content": part.logprobs, "refusal": None} if part.logprobs else None
        return choice | {"logprobs": logprobs, "finish_reason": part.finish_reason}

    def _event(self, *choices: dict[str, Any], **more: Any) -> str:
        kind = f"{self._kind}.chunk" if self.is_chat else self._kind
        return _data(self._head | {"object": kind, "choices": choices, **more})


class ResponsesObjects:
    """The objects that answer one request to `/v1/responses`, whole or as events; usage is in the last of them."""

    def __init__(self, model_name: str, include_usage: bool = True):
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
        self._has_begun = False
        self._place = {"item_id": self._message_id, "output_index": 0, "content_index": 0}
        self._num_events = 0

    def whole(self, answers: list[Part], usage: dict[str, Any]) -> dict[str, Any]:
        """The whole response."""
        (answer,) = answers
        is_cut = answer.finish_reason == "length"
        status = "incomplete" if is_cut else "completed"
        return self._head | {
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": self._output(status, answer),
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                **{name: usage[name] for name in ("total_tokens", "nfe", "tokens_per_forward")},
            },
        }

    def first_events(self) -> Iterator[str]:
        """What a stream begins with."""
        begun = self._head | {"status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
        yield self._event("response.created", response=begun)

    def events(self, part: Part) -> Iterator[str]:
        """The next part of the answer, whose end is the end of the response."""
        if part.finish_reason is None and (part.text or not part.tool_calls):
            yield from self._begin()
            yield self._event("response.output_text.delta", **self._place, delta=part.text, logprobs=part.logprobs)

    def last_events(self, answers: list[Part], usage: dict[str, Any]) -> Iterator[str]:
        """The end of the response."""
        response = self.whole(answers, usage)
        for index, item in enumerate(response["output"]):
            if item["type"] == "message":
                yield from self._begin()
                (part,) = item["content"]
                text = {"text": part["text"], "logprobs": part["logprobs"]}
                yield self._event("response.output_text.done", **self._place, **text)
                yield self._event("response.content_part.done", **self._place, part=part)
            else:
                place = {"item_id": item["id"], "output_index": index}
                begun = item | {"arguments": "", "status": "in_progress"}
                yield self._event("response.output_item.added", output_index=index, item=begun)
                yield self._event("response.function_call_arguments.delta", **place, delta=item["arguments"])
                arguments = {"name": item["name"], "arguments": item["arguments"]}
                yield self._event("response.function_call_arguments.done", **place, **arguments)
            yield self._event("response.output_item.done", output_index=index, item=item)
        yield self._event(f"response.{response['status']}", response=response)

    def error_event(self, error: RequestError) -> str:
        """The end of a stream that cannot be finished."""
        return self._event("error", code=error.code, message=str(error), param=error.param)

    def _begin(self) -> Iterator[str]:
        """Begins the message, unless it has begun."""
        if not self._has_begun:
            self._has_begun = True
            yield self._event("response.output_item.added", output_index=0, item=self._message("in_progress"))
            yield self._event("response.content_part.added", **self._place, part=_content(Part(0, "")))

    def _output(self, status: str, answer: Part) -> list[dict[str, Any]]:
        """Returns the items of an answer: its text, if it is not calls alone, and its calls."""
        has_message = self._has_begun or answer.text or not answer.tool_calls
        message = [self._message(status, _content(answer))] if has_message else []
        calls = [
            {
                "type": "function_call",
                "id": call["id"].replace("call_", "fc_"),
                "call_id": call["id"],
                "status": status,
            }
            | call["function"]
            for call in answer.tool_calls
        ]
        return message + calls

    def _message(self, status: str, *content: dict[str, Any]) -> dict[str, Any]:
        head = {"id": self._message_id, "type": "message", "role": "assistant"}
        return head | {"status": status, "content": content}

    def _event(self, kind: str, **fields: Any) -> str:
        event = {"type": kind, "sequence_number": self._num_events, **fields}
        self._num_events += 1
        return f"event: {kind}\n{_data(event)}"


def usage(prompt_tokens: int, completion_tokens: int, nfe: int) -> dict[str, Any]:
    """What a request has cost: OpenAI's counts, the forward passes that its prompts took part in, and their ratio."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "nfe": nfe,
        "tokens_per_forward": round(completion_tokens / nfe, 4) if nfe else 0.0,
    }


def error_body(error: RequestError) -> dict[str, Any]:
    """OpenAI's error object."""
    kind = {401: "authentication_error", 429: "rate_limit_error"}.get(
        error.status, "server_error" if error.status >= 500 else "invalid_request_error"
    )
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}


def _content(part: Part) -> dict[str, Any]:
    return {"type": "output_text", "text": part.text, "annotations": [], "logprobs": part.logprobs}


def _said(part: Part, calls: list[dict[str, Any]]) -> dict[str, Any]:
    return {"content": part.text or None, "tool_calls": calls} if calls else {"content": part.text}


def _data(event: dict[str, Any]) -> str:
    return f"data: {json.dumps(event)}\n\n"
