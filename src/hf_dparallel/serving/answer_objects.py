# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The JSON of responses in OpenAI's form, for chats, for completed texts and for `/v1/responses`."""

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .bodies import RequestError


@dataclass
class Part:
    """The next part of answer number `index`, or the whole answer."""

    index: int
    text: str
    # "stop", "length" or "tool_calls" in the last part, which has no text.
    finish_reason: str | None = None
    # The tokens of the part with their log-probabilities, if the request has `logprobs`.
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    # The partial answer after this pass, if the request has `include_drafts`.
    draft: dict[str, Any] | None = None
    # The functions that the answer calls; only its end has them.
    tool_calls: list[dict[str, Any]] = field(default_factory=list)


class CompletionObjects:
    """The objects that answer one request to `/v1/chat/completions` or `/v1/completions`, whole or as events.

    With `include_usage`, the last event has the usage.
    """

    def __init__(self, model_name: str, include_usage: bool, is_chat: bool):
        self.is_chat = is_chat
        self.include_usage = include_usage
        prefix, self._kind = ("chatcmpl", "chat.completion") if is_chat else ("cmpl", "text_completion")
        self._head = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model_name}

    def whole(self, answers: list[Part], usage: dict[str, Any]) -> dict[str, Any]:
        """Returns the whole response."""
        choices = [
            self._choice(each, message={"role": "assistant"} | _said(each, each.tool_calls)) for each in answers
        ]
        return self._head | {"object": self._kind, "choices": choices, "usage": usage}

    def first_events(self) -> Iterator[str]:
        """Yields the events at the beginning of a stream."""
        if self.is_chat:
            yield self._event(self._choice(Part(0, ""), delta={"role": "assistant", "content": ""}))

    def events(self, part: Part) -> Iterator[str]:
        """Yields the events of one part of an answer."""
        calls = [{"index": index} | call for index, call in enumerate(part.tool_calls)]
        yield self._event(self._choice(part, delta={} if part.finish_reason else _said(part, calls)))

    def last_events(self, answers: list[Part], usage: dict[str, Any]) -> Iterator[str]:
        """Yields the events after the last part of the last answer."""
        if self.include_usage:
            yield self._event(usage=usage)
        yield "data: [DONE]\n\n"

    def error_event(self, error: RequestError) -> str:
        """Returns the event that ends a stream with an error."""
        return _data(error_body(error))

    def _choice(self, part: Part, **content: Any) -> dict[str, Any]:
        """Returns an answer or a part of one. `content` is the form that it has in a chat."""
        choice = {"index": part.index, **(content if self.is_chat else {"text": part.text})}
        if part.draft is not None:
            choice["draft"] = part.draft
        logprobs = {"content": part.logprobs, "refusal": None} if part.logprobs else None
        return choice | {"logprobs": logprobs, "finish_reason": part.finish_reason}

    def _event(self, *choices: dict[str, Any], **more: Any) -> str:
        kind = f"{self._kind}.chunk" if self.is_chat else self._kind
        return _data(self._head | {"object": kind, "choices": choices, **more})


class ResponsesObjects:
    """The objects that answer one request to `/v1/responses`, whole or as events. The last event has the usage."""

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
        """Returns the whole response."""
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
        """Yields the events at the beginning of a stream."""
        begun = self._head | {"status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
        yield self._event("response.created", response=begun)

    def events(self, part: Part) -> Iterator[str]:
        """Yields the events of one part of the answer. The last part is left to `last_events`."""
        if part.finish_reason is None and (part.text or not part.tool_calls):
            yield from self._begin()
            yield self._event("response.output_text.delta", **self._place, delta=part.text, logprobs=part.logprobs)

    def last_events(self, answers: list[Part], usage: dict[str, Any]) -> Iterator[str]:
        """Yields the events that end each item of the response, and the response."""
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
        """Returns the event that ends a stream with an error."""
        return self._event("error", code=error.code, message=str(error), param=error.param)

    def _begin(self) -> Iterator[str]:
        """Yields the events that begin the message, unless they are already sent."""
        if not self._has_begun:
            self._has_begun = True
            yield self._event("response.output_item.added", output_index=0, item=self._message("in_progress"))
            yield self._event("response.content_part.added", **self._place, part=_content(Part(0, "")))

    def _output(self, status: str, answer: Part) -> list[dict[str, Any]]:
        """Returns the items of an answer: a message, unless the answer has calls only, and the calls."""
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
    """Returns OpenAI's token counts, the forward passes of the request's prompts, and tokens per forward pass."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "nfe": nfe,
        "tokens_per_forward": round(completion_tokens / nfe, 4) if nfe else 0.0,
    }


def error_body(error: RequestError) -> dict[str, Any]:
    """Returns OpenAI's error object."""
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
