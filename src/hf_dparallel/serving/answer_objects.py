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
    """What follows in the answer of this number."""

    index: int
    text: str
    # What stands of it, if drafts are asked for.
    draft: dict[str, Any] | None = None
    # Its further tokens with their log-probabilities, if those are asked for.
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    # "stop" or "length" at its end.
    finish_reason: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell but that it has ended."""
        return not self.text and self.draft is None and not self.logprobs


@dataclass
class Completion:
    """A whole answer."""

    text: str
    finish_reason: str
    logprobs: list[dict[str, Any]]


class CompletionObjects:
    """The objects that answer one request to `/v1/chat/completions` or `/v1/completions`, whole or as events.

    With `include_usage`, the last event says what the request has cost.
    """

    def __init__(self, model_name: str, include_usage: bool, is_chat: bool):
        self.is_chat = is_chat
        self.include_usage = include_usage
        self._kind = "chat.completion" if is_chat else "text_completion"
        self._head = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model_name,
        }

    def whole(self, answers: list[Completion], usage: dict[str, Any]) -> dict[str, Any]:
        """The whole response."""
        choices = [
            {
                "index": index,
                **({"message": {"role": "assistant", "content": each.text}} if self.is_chat else {"text": each.text}),
                "logprobs": _logprobs(each.logprobs),
                "finish_reason": each.finish_reason,
            }
            for index, each in enumerate(answers)
        ]
        return self._head | {"object": self._kind, "choices": choices, "usage": usage}

    def first_events(self) -> Iterator[str]:
        """What a stream begins with."""
        if self.is_chat:
            yield self._event(0, {"delta": {"role": "assistant", "content": ""}})

    def events(self, part: Part) -> Iterator[str]:
        """What follows in an answer, and its end."""
        if not part.is_empty:
            content: dict[str, Any] = {"delta": {"content": part.text}} if self.is_chat else {"text": part.text}
            if part.draft is not None:
                content["draft"] = part.draft
            yield self._event(part.index, content, logprobs=part.logprobs)
        if part.finish_reason is not None:
            yield self._event(part.index, {"delta": {}} if self.is_chat else {"text": ""}, part.finish_reason)

    def last_events(self, answers: list[Completion], usage: dict[str, Any]) -> Iterator[str]:
        """The end of all answers."""
        if self.include_usage:
            yield _data(self._chunk([]) | {"usage": usage})
        yield "data: [DONE]\n\n"

    def error_event(self, error: RequestError) -> str:
        """The end of a stream that cannot be finished; its status has been sent."""
        return _data(error_body(error))

    def _event(
        self,
        index: int,
        content: dict[str, Any],
        finish_reason: str | None = None,
        logprobs: list[dict[str, Any]] | None = None,
    ) -> str:
        choice = {"index": index, **content, "logprobs": _logprobs(logprobs), "finish_reason": finish_reason}
        return _data(self._chunk([choice]))

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._head | {"object": f"{self._kind}.chunk" if self.is_chat else self._kind, "choices": choices}


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
        self._place = {"item_id": self._message_id, "output_index": 0, "content_index": 0}
        self._num_events = 0

    def whole(self, answers: list[Completion], usage: dict[str, Any]) -> dict[str, Any]:
        """The whole response."""
        (answer,) = answers
        is_cut = answer.finish_reason == "length"
        status = "incomplete" if is_cut else "completed"
        return self._head | {
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": [self._message(status, [_text_part(answer.text, answer.logprobs)])],
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
        yield self._event("response.output_item.added", output_index=0, item=self._message("in_progress", []))
        yield self._event("response.content_part.added", **self._place, part=_text_part("", []))

    def events(self, part: Part) -> Iterator[str]:
        """What follows in the answer, whose end is the end of the response."""
        if not part.is_empty:
            yield self._event("response.output_text.delta", **self._place, delta=part.text, logprobs=part.logprobs)

    def last_events(self, answers: list[Completion], usage: dict[str, Any]) -> Iterator[str]:
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
        return self._event("error", code=error.code, message=str(error), param=error.param)

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


def _data(event: dict[str, Any]) -> str:
    return f"data: {json.dumps(event)}\n\n"


def _logprobs(tokens: list[dict[str, Any]] | None) -> dict[str, Any] | None:
    return {"content": tokens, "refusal": None} if tokens else None


def _text_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
