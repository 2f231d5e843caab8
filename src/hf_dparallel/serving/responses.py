# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The JSON of responses, in OpenAI's form."""

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .bodies import RequestError


@dataclass
class Part:
    """What follows in an answer.

    Args:
        index (`int`): number of the answer.
        text (`str`): its further text.
        draft (`dict`, *optional*): what stands of it, if drafts are asked for.
        logprobs (`list[dict]`): its further tokens with their log-probabilities, if those are asked for.
        finish_reason (`str`, *optional*): "stop" or "length" at its end.
    """

    index: int
    text: str
    draft: dict[str, Any] | None = None
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell but that it has ended."""
        return not self.text and self.draft is None and not self.logprobs


@dataclass
class Answer:
    """A whole answer: its text, why it has ended, and its tokens' log-probabilities, if those are asked for."""

    text: str
    finish_reason: str
    logprobs: list[dict[str, Any]]


class ResponseForm:
    """The objects that answer one request to `/v1/chat/completions` or `/v1/completions`, whole or as events.

    Args:
        model_name (`str`): the name of the model that answers.
        is_chat (`bool`): whether a chat or a text is completed.
        include_usage (`bool`): whether the last event says what the request has cost.
    """

    def __init__(self, model_name: str, is_chat: bool, include_usage: bool = False):
        self.is_chat = is_chat
        self.include_usage = include_usage
        self._kind = "chat.completion" if is_chat else "text_completion"
        self._head = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model_name,
        }

    def whole(self, answers: list[Answer], usage: dict[str, Any]) -> dict[str, Any]:
        """The whole response."""
        choices = [
            {
                "index": index,
                **self._content(answer.text),
                "logprobs": _logprobs(answer.logprobs),
                "finish_reason": answer.finish_reason,
            }
            for index, answer in enumerate(answers)
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

    def last_events(self, answers: list[Answer], usage: dict[str, Any]) -> Iterator[str]:
        """The end of all answers."""
        if self.include_usage:
            yield server_sent_event(self._chunk([]) | {"usage": usage})
        yield server_sent_event("[DONE]")

    def error_event(self, error: RequestError) -> str:
        """The end of a stream that cannot be finished; its status has been sent."""
        return server_sent_event(error_body(error))

    def _event(
        self,
        index: int,
        content: dict[str, Any],
        finish_reason: str | None = None,
        logprobs: list[dict[str, Any]] | None = None,
    ) -> str:
        choice = {"index": index, **content, "logprobs": _logprobs(logprobs), "finish_reason": finish_reason}
        return server_sent_event(self._chunk([choice]))

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._head | {"object": f"{self._kind}.chunk" if self.is_chat else self._kind, "choices": choices}

    def _content(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}} if self.is_chat else {"text": text}


def _logprobs(tokens: list[dict[str, Any]] | None) -> dict[str, Any] | None:
    return {"content": tokens, "refusal": None} if tokens else None


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


def server_sent_event(data: dict[str, Any] | str) -> str:
    """An event of a stream."""
    return f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n"
