# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The JSON of responses, in OpenAI's form."""

import json
import time
import uuid
from typing import Any

from .requests import RequestError


class ResponseForm:
    """The objects that answer one request.

    Args:
        model_name (`str`): the name of the model that answers.
        is_chat (`bool`): whether a chat or a text is completed.
    """

    def __init__(self, model_name: str, is_chat: bool):
        self.is_chat = is_chat
        self._kind = "chat.completion" if is_chat else "text_completion"
        self._head = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model_name,
        }

    def whole(self, answers: list[tuple[str, str]], usage: dict[str, Any]) -> dict[str, Any]:
        """The whole response: text and finish reason of each answer."""
        choices = [
            {"index": index, **self._content(text), "logprobs": None, "finish_reason": finish_reason}
            for index, (text, finish_reason) in enumerate(answers)
        ]
        return self._head | {"object": self._kind, "choices": choices, "usage": usage}

    def chunk(
        self,
        index: int,
        text: str,
        finish_reason: str | None = None,
        is_first: bool = False,
        draft: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """A part of an answer, and a draft of it, if there is one."""
        content: dict[str, Any] = {"text": text}
        if self.is_chat:
            content = {
                "delta": ({"role": "assistant"} if is_first else {}) | ({} if finish_reason else {"content": text})
            }
        choice = {"index": index, **content, "logprobs": None, "finish_reason": finish_reason}
        return self._chunk([choice if draft is None else choice | {"draft": draft}])

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The last part, if the client asked for it."""
        return self._chunk([]) | {"usage": usage}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._head | {"object": f"{self._kind}.chunk" if self.is_chat else self._kind, "choices": choices}

    def _content(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}} if self.is_chat else {"text": text}


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
