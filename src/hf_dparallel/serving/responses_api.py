# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The objects of OpenAI's newer endpoint, `/v1/responses`."""

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

from .bodies import RequestError
from .responses import Answer, Part, error_body


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


def _part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
