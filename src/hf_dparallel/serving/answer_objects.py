# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The JSON of responses in OpenAI's form, for chats and for completed texts."""

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


def _said(part: Part, calls: list[dict[str, Any]]) -> dict[str, Any]:
    return {"content": part.text or None, "tool_calls": calls} if calls else {"content": part.text}


def _data(event: dict[str, Any]) -> str:
    return f"data: {json.dumps(event)}\n\n"
