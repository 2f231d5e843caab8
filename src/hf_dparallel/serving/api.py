# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""OpenAI's endpoints, as an ASGI application: the way of a request to the engine, and of the answer to the client."""

import asyncio
import json
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pydantic_core import from_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ..generation.compatibility import longest_sequence
from ..generation.configuration import resolve
from .engine import Engine, Progress, Prompt
from .errors import RequestError
from .json import JsonAnswer
from .requests import (
    REQUEST_SETTINGS,
    ChatBody,
    CompletionRequest,
    ServedModel,
    TextBody,
    choose_model,
    read_request,
)
from .row_options import RowOptions
from .text import IncrementalText, draft_to_json, logprobs_to_json


class Choice:
    """The answer to one prompt, as a client receives it: one choice of the response."""

    def __init__(self, index: int, request: CompletionRequest, served: ServedModel):
        self.index = index
        self.nfe = 0
        self.num_tokens = 0
        self.finish_reason: str | None = None
        self._is_chat = isinstance(request.body, ChatBody)
        self._tools = request.tools
        self._tokenizer = served.tokenizer
        self._text = IncrementalText(served.tokenizer, request.stop)
        # What clients are told: the text without calls, the calls at its end, and the log-probabilities.
        self._content, self._calls, self._logprobs = "", list[dict[str, Any]](), list[dict[str, Any]]()

    def add(self, progress: Progress) -> list[dict[str, Any]]:
        """Adds the new tokens of a pass, and returns the choices of the chunks to send."""
        text, tools = self._text, self._tools
        before, num_before, num_sent = text.tokens[-1:], len(text.tokens), len(self._content)
        text.add(progress.tokens)
        if progress.finish_reason is not None:
            text.end()
        self.nfe, self.num_tokens = progress.nfe, len(text.tokens)
        self.finish_reason = "stop" if text.is_stopped else progress.finish_reason
        self._content = text.text
        if tools is not None:
            self._content, self._calls = tools.read(text.text, self.finish_reason is not None)
        if self._calls:
            self.finish_reason = "tool_calls"
        added = self._content[num_sent:]
        # A stop string may have ended the answer before the last of the tokens.
        measured = list(zip(text.tokens[num_before:], progress.logprobs, strict=False))
        logprobs = logprobs_to_json(self._tokenizer, before, measured)
        self._logprobs += logprobs
        draft = None
        if progress.draft is not None:
            start = progress.draft.start
            entries = draft_to_json(self._tokenizer, progress.draft, text.tokens[:start][-1:])
            draft = {"draft": {"nfe": progress.nfe, "start": start, "tokens": entries}}
        chunks = []
        if added or self._calls or draft or logprobs:
            calls = [{"index": index} | call for index, call in enumerate(self._calls)]
            chunks.append(self._choice("delta", added, calls, logprobs) | (draft or {}))
        if self.finish_reason is not None:
            chunks.append(self._choice("delta", None, [], []) | {"finish_reason": self.finish_reason})
        return chunks

    def first(self) -> dict[str, Any]:
        """Returns the choice of the first chunk of a chat."""
        return self._choice("delta", "", [], []) | {"delta": {"role": "assistant", "content": ""}}

    def whole(self) -> dict[str, Any]:
        """Returns the whole choice, after the end of the answer."""
        choice = self._choice("message", self._content, self._calls, self._logprobs)
        if self._is_chat:
            choice["message"] = {"role": "assistant", "refusal": None} | choice["message"]
        return choice | {"finish_reason": self.finish_reason}

    def _choice(
        self, key: str, text: str | None, calls: list[dict[str, Any]], logprobs: list[dict[str, Any]]
    ) -> dict[str, Any]:
        content: dict[str, Any] = {} if text is None else {"content": text}
        if calls:
            content = {"content": text or None, "tool_calls": calls}
        form = {key: content} if self._is_chat else {"text": text or ""}
        measured = {"content": logprobs, "refusal": None} if logprobs else None
        return {"index": self.index, **form, "logprobs": measured, "finish_reason": None}


class PendingRequest:
    """The answers to one request, as the decoding thread makes them. Raises a [`RequestError`] if too many wait."""

    def __init__(self, request: CompletionRequest, engine: Engine, served: ServedModel):
        self.request = request
        prompts = [ids for ids in request.prompts for _ in range(request.body.n)]
        self.choices = [Choice(index, request, served) for index in range(len(prompts))]
        is_chat = isinstance(request.body, ChatBody)
        prefix, self._kind = ("chatcmpl", "chat.completion") if is_chat else ("cmpl", "text_completion")
        self._head = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": served.name}
        self._engine = engine
        self._progress: asyncio.Queue[tuple[int, Progress]] = asyncio.Queue()
        self._prompts = [
            Prompt(
                input_ids=ids,
                config=request.config,
                max_tokens=request.max_tokens,
                seed=request.seed + index,
                listener=partial(self._listen, asyncio.get_running_loop(), index),
                adapter=served.adapter,
                options=RowOptions(
                    json=JsonAnswer(request.schema) if request.schema is not None else None,
                    num_logprobs=request.num_logprobs,
                    has_drafts=request.body.stream and request.body.stream_options.include_drafts,
                ),
            )
            for index, ids in enumerate(prompts)
        ]
        engine.submit(self._prompts)

    def _listen(self, loop: asyncio.AbstractEventLoop, index: int, progress: Progress) -> None:
        loop.call_soon_threadsafe(self._progress.put_nowait, (index, progress))

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        """Yields the choices of chunks until all answers have ended. Raises a [`RequestError`] if decoding fails."""
        while any(choice.finish_reason is None for choice in self.choices):
            index, progress = await self._progress.get()
            choice = self.choices[index]
            if choice.finish_reason is not None:
                continue  # a stop string ended the answer while the decoding thread ran another pass
            if progress.error is not None:
                raise _failure(progress.error)
            for chunk in choice.add(progress):
                yield chunk
            if choice.finish_reason is not None:
                self._engine.give_up([self._prompts[index]])

    async def events(self) -> AsyncIterator[str]:
        """Yields the events of a stream."""
        options = self.request.body.stream_options
        # OpenAI's chunks have an empty usage if the last one has the usage.
        head = self._head | {"object": self._kind + ".chunk" * isinstance(self.request.body, ChatBody)}
        empty = {"usage": None} if options.include_usage else {}
        if isinstance(self.request.body, ChatBody):
            yield _event(head | {"choices": [self.choices[0].first()]} | empty)
        try:
            async for choice in self.chunks():
                yield _event(head | {"choices": [choice]} | empty)
        except RequestError as error:
            # The HTTP status is already sent.
            yield _event(_error_body(error))
            return
        if options.include_usage:
            yield _event(head | {"choices": [], "usage": self.usage()})
        yield "data: [DONE]\n\n"

    async def whole(self, request: Request) -> dict[str, Any]:
        """Returns the whole response. Raises `ClientDisconnect` if the client leaves first."""

        async def gone() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            raise ClientDisconnect

        async def end() -> None:
            async for _ in self.chunks():
                pass

        tasks = [asyncio.ensure_future(end()), asyncio.ensure_future(gone())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            done.pop().result()
        finally:
            self.give_up()
            for task in tasks:
                task.cancel()
        choices = [choice.whole() for choice in self.choices]
        return self._head | {"object": self._kind, "choices": choices, "usage": self.usage()}

    def give_up(self) -> None:
        """Frees the slots of the answers that are not finished."""
        self._engine.give_up(self._prompts)

    def usage(self) -> dict[str, Any]:
        """Returns OpenAI's token counts, the forward passes of all answers, and tokens per forward pass."""
        # Each prompt counts once, however often it is answered.
        num_prompt = sum(map(len, self.request.prompts))
        num_tokens, nfe = (sum(getattr(each, name) for each in self.choices) for name in ("num_tokens", "nfe"))
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_tokens,
            "total_tokens": num_prompt + num_tokens,
            "nfe": nfe,
            "tokens_per_forward": round(num_tokens / nfe, 4) if nfe else 0.0,
        }


class SseResponse(StreamingResponse):
    """Server-sent events. Frees the slots at the end, or if the client disconnects."""

    media_type = "text/event-stream"

    def __init__(self, pending: PendingRequest):
        super().__init__(pending.events(), headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._pending = pending

    async def __call__(self, scope, receive, send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._pending.give_up()


@dataclass
class Api:
    """The endpoints. A request without `model` is answered by the first model."""

    served: dict[str, ServedModel]
    engine: Engine
    api_key: str | None
    max_request_bytes: int
    start: int = field(default_factory=lambda: int(time.time()))

    async def complete(self, kind: type[ChatBody | TextBody], request: Request) -> Response:
        """Answers a `POST` whose body has the class `kind`."""
        self._authorize(request)
        content = await self._read_content(request)
        # In a thread, because a long text takes seconds, in which the event loop must answer other requests.
        completion, served = await asyncio.to_thread(self._read, kind, content)
        pending = PendingRequest(completion, self.engine, served)
        if completion.body.stream:
            return SseResponse(pending)
        return JSONResponse(await pending.whole(request))

    async def models(self, request: Request) -> Response:
        """Answers `GET /v1/models`."""
        self._authorize(request)
        return JSONResponse({"object": "list", "data": list(map(self._describe, self.served.values()))})

    async def model(self, request: Request) -> Response:
        """Answers `GET /v1/models/{name}`."""
        self._authorize(request)
        return JSONResponse(self._describe(choose_model(request.path_params["name"], self.served)))

    async def health(self, request: Request) -> Response:
        """Answers `GET /health`."""
        engine = self.engine
        state = {
            "status": "ok" if engine.is_alive else "closed",
            "slots": engine.num_slots,
            "active": engine.num_active,
            "waiting": engine.num_waiting,
            "prompts": engine.num_prompts,
            "tokens": engine.num_tokens,
            "passes": engine.num_passes,
        }
        return JSONResponse(state, status_code=200 if engine.is_alive else 503)

    def _authorize(self, request: Request) -> None:
        if self.api_key is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not secrets.compare_digest(given.encode(), self.api_key.encode()):
            raise RequestError(
                "The API key is missing or wrong. Send the header `Authorization: Bearer KEY`.",
                status=401,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    async def _read_content(self, request: Request) -> bytes:
        # A page of another site that is open in a browser on this machine may send other types without asking.
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RequestError("The body must be JSON. Send the header `Content-Type: application/json`.", status=415)
        received = b""
        async for part in request.stream():
            received += part
            if len(received) > self.max_request_bytes:
                # uvicorn drops the rest: a client may send the whole body before it reads the error.
                message = f"The body is longer than {self.max_request_bytes} bytes. Send a shorter prompt."
                raise RequestError(message, status=413)
        return received

    def _read(self, kind: type[ChatBody | TextBody], content: bytes) -> tuple[CompletionRequest, ServedModel]:
        try:
            given = from_json(content, allow_inf_nan=False)
        except ValueError as error:
            raise RequestError(f"The body is not valid JSON: {error}") from error
        if not isinstance(given, dict):
            raise RequestError("The body must be a JSON object.")
        served = choose_model(given.get("model"), self.served)
        return read_request(kind, given, served, self.engine.max_prompts), served

    def _describe(self, served: ServedModel) -> dict[str, Any]:
        recipe = resolve(served.model, served.generation_config, served.tokenizer)
        return {
            "id": served.name,
            "object": "model",
            "created": self.start,
            "owned_by": "hf-dparallel",
            "max_model_len": longest_sequence(served.model),
            "parent": served.parent,
            "decoding": {name: value for name, value in recipe.settings().items() if name in REQUEST_SETTINGS},
        }


def make_app(
    models: dict[str, ServedModel], engine: Engine, api_key: str | None = None, max_request_bytes: int = 2**20
) -> Starlette:
    """Returns the application. It closes the engine when it shuts down."""
    api = Api(models, engine, api_key, max_request_bytes)
    handlers: dict[Any, Callable] = {
        RequestError: _refuse,
        HTTPException: _refuse_route,
        # The client has gone and reads no response.
        ClientDisconnect: lambda request, error: Response(status_code=499),
        Exception: _refuse_unexpected,
    }

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(engine.close)

    return Starlette(
        routes=[
            Route("/v1/chat/completions", partial(api.complete, ChatBody), methods=["POST"]),
            Route("/v1/completions", partial(api.complete, TextBody), methods=["POST"]),
            Route("/v1/models", api.models),
            Route("/v1/models/{name:path}", api.model),
            Route("/health", api.health),
        ],
        middleware=[Middleware(_refuse_two_lengths)],
        exception_handlers=handlers,
        lifespan=lifespan,
    )


def _refuse_two_lengths(app: Callable) -> Callable:
    """Wraps an application: proxies may read another one of two lengths, and what follows as a further request."""

    async def wrapped(scope: dict[str, Any], receive: Callable, send: Callable) -> None:
        names = {name for name, _ in scope.get("headers", ())}
        error = _error_body(RequestError("The request has both Content-Length and Transfer-Encoding."))
        is_ambiguous = {b"content-length", b"transfer-encoding"} <= names
        answer = JSONResponse(error, 400, {"Connection": "close"}) if is_ambiguous else app
        await answer(scope, receive, send)

    return wrapped


def _event(event: dict[str, Any]) -> str:
    return f"data: {json.dumps(event)}\n\n"


def _error_body(error: RequestError) -> dict[str, Any]:
    """Returns OpenAI's error object."""
    kind = {401: "authentication_error", 429: "rate_limit_error"}.get(
        error.status, "server_error" if error.status >= 500 else "invalid_request_error"
    )
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}


def _failure(error: Exception) -> RequestError:
    if isinstance(error, RequestError):
        return error
    reason = f"Decoding failed with {type(error).__name__}. The server's log has the traceback."
    return RequestError(str(error) if isinstance(error, FloatingPointError) else reason, status=500)


async def _refuse(request: Request, error: RequestError) -> Response:
    return JSONResponse(_error_body(error), status_code=error.status, headers=error.headers)


async def _refuse_route(request: Request, error: HTTPException) -> Response:
    message = (
        f"{request.method} {request.url.path}: {error.detail}. The endpoints are /v1/chat/completions, "
        "/v1/completions, /v1/models and /health."
    )
    return await _refuse(request, RequestError(message, status=error.status_code))


async def _refuse_unexpected(request: Request, error: Exception) -> Response:
    return await _refuse(request, RequestError("Internal error. The server's log has the traceback.", status=500))
