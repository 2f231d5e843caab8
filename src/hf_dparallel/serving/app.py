# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The HTTP side of the server: OpenAI's endpoints, as an ASGI application."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pydantic_core import from_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from transformers import PreTrainedTokenizerBase

from ..generation.compatibility import longest_sequence
from ..generation.configuration import resolve
from .answer_objects import CompletionObjects, Part, error_body, usage
from .bodies import Body, ChatBody, RequestError, TextBody, requestable_settings
from .engine import Engine, Prompt
from .followers import CommitLogprobs, DraftReader, Follower, Progress
from .incremental_text import IncrementalText, say_draft, say_logprobs
from .json_answers import JsonAnswer
from .requests import CompletionRequest, ServedModel, choose_model, read_request
from .tool_calls import ToolChoice


class PendingRequest:
    """The answers to one request, as the decoding thread makes them. Raises a [`RequestError`] if too many wait."""

    def __init__(self, request: CompletionRequest, engine: Engine, served: ServedModel):
        prompts = [ids for ids in request.prompts for _ in range(request.body.n)]
        self._answers = [_Answer(n, served.tokenizer, request.stop, request.tools) for n in range(len(prompts))]
        # Each prompt counts once, however often it is answered.
        self._prompt_tokens = sum(map(len, request.prompts))
        self._engine = engine
        self._events: asyncio.Queue[tuple[int, Progress]] = asyncio.Queue()
        self._prompts = [
            Prompt(
                input_ids=ids,
                config=request.config,
                max_tokens=request.max_tokens,
                seed=request.seed + index,
                listener=self._listener(index),
                adapter=served.adapter,
                followers=_followers(request),
            )
            for index, ids in enumerate(prompts)
        ]
        engine.submit(self._prompts)

    async def parts(self) -> AsyncIterator[Part]:
        """Yields the parts of the answers until all have ended. Raises a [`RequestError`] if decoding fails."""
        while any(answer.text.finish_reason is None for answer in self._answers):
            index, progress = await self._events.get()
            answer = self._answers[index]
            if answer.text.finish_reason is not None:
                continue  # a stop string ended the answer while the decoding thread ran another pass
            if progress.error is not None:
                raise _failure(progress.error)
            # In a thread, because many tokens take seconds, in which the event loop must answer other requests.
            parts = await asyncio.to_thread(answer.add, progress)
            if answer.text.finish_reason is not None:
                self._engine.give_up([self._prompts[index]])
            for part in parts:
                yield part

    async def finish(self, request: Request) -> None:
        """Waits until all answers have ended. Raises `ClientDisconnect` if the client leaves first."""

        async def gone() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            raise ClientDisconnect

        async def end() -> None:
            async for _ in self.parts():
                pass

        tasks = [asyncio.ensure_future(end()), asyncio.ensure_future(gone())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            done.pop().result()
        finally:
            self.give_up()
            for task in tasks:
                task.cancel()

    def give_up(self) -> None:
        """Frees the slots of the answers that are not finished."""
        self._engine.give_up(self._prompts)

    def answers(self) -> list[Part]:
        """Returns the whole answers, after all have ended."""
        return [answer.whole() for answer in self._answers]

    def usage(self) -> dict[str, Any]:
        """Returns the usage of the request so far."""
        num_tokens = sum(answer.text.num_tokens for answer in self._answers)
        return usage(self._prompt_tokens, num_tokens, sum(answer.nfe for answer in self._answers))

    def _listener(self, index: int) -> Callable[[Progress], Any]:
        loop = asyncio.get_running_loop()
        return lambda progress: loop.call_soon_threadsafe(self._events.put_nowait, (index, progress))


class _Answer:
    """The answer to one prompt, as the client receives it."""

    def __init__(
        self, index: int, tokenizer: PreTrainedTokenizerBase, stop: list[str], tools: ToolChoice | None = None
    ):
        self.index = index
        self.text = IncrementalText(tokenizer, stop)
        self.nfe = 0
        self._logprobs: list[dict[str, Any]] = []
        self._tokenizer = tokenizer
        self._tools = tools
        # What is said of the answer, and the calls at its end.
        self._content, self._calls = "", list[dict[str, Any]]()

    def add(self, progress: Progress) -> list[Part]:
        """Adds the new tokens of a pass, and returns the parts that can be sent."""
        self.nfe = progress.nfe
        before, num_before, num_said = self.text.tokens[-1:], self.text.num_tokens, len(self._content)
        self.text.add(progress)
        self._content = self.text.text
        if self._tools is not None:
            self._content, self._calls = self._tools.read(self.text.text, self.text.finish_reason is not None)
        part = Part(self.index, self._content[num_said:], tool_calls=self._calls)
        if progress.draft is not None:
            tokens = say_draft(self._tokenizer, progress.draft)
            part.draft = {"nfe": progress.nfe, "start": progress.draft.start, "tokens": tokens}
        # A stop string may have ended the answer before the last of the tokens.
        logprobs = progress.logprobs[: self.text.num_tokens - num_before]
        part.logprobs = say_logprobs(self._tokenizer, before, progress.tokens[: len(logprobs)], logprobs)
        self._logprobs += part.logprobs
        parts = [part] if part.text or part.tool_calls or part.draft or part.logprobs else []
        return parts if self.text.finish_reason is None else [*parts, Part(self.index, "", self._finish_reason())]

    def whole(self) -> Part:
        """Returns the whole answer as one part."""
        return Part(self.index, self._content, self._finish_reason(), self._logprobs, tool_calls=self._calls)

    def _finish_reason(self) -> str | None:
        return "tool_calls" if self._calls else self.text.finish_reason


def _followers(request: CompletionRequest) -> list[Follower]:
    """Returns the followers of an answer, in the order in which each pass calls them."""
    body, followers = request.body, list[Follower]()
    if request.schema is not None:
        followers.append(JsonAnswer(request.schema))
    if body.logprobs:
        followers.append(CommitLogprobs(body.top_logprobs))
    if body.stream and body.stream_options.include_drafts:
        followers.append(DraftReader(request.max_tokens))
    return followers


class SseResponse(StreamingResponse):
    """Server-sent events. Frees the slots at the end, or if the client disconnects."""

    media_type = "text/event-stream"

    def __init__(self, pending: PendingRequest, objects: CompletionObjects):
        super().__init__(_events(pending, objects), headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._pending = pending

    async def __call__(self, scope, receive, send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._pending.give_up()


async def _events(pending: PendingRequest, objects: CompletionObjects) -> AsyncIterator[str]:
    for event in objects.first_events():
        yield event
    try:
        async for part in pending.parts():
            for event in objects.events(part):
                yield event
    except RequestError as error:
        # The HTTP status is already sent.
        yield objects.error_event(error)
        return
    for event in objects.last_events(pending.answers(), pending.usage()):
        yield event


@dataclass
class Api:
    """The endpoints. A request without `model` is answered by the first model."""

    served: dict[str, ServedModel]
    engine: Engine
    api_key: str | None
    max_request_bytes: int
    start: int = field(default_factory=lambda: int(time.time()))

    async def complete(self, kind: type[Body], request: Request) -> Response:
        """Answers a `POST` whose body has the class `kind`."""
        self._authorize(request)
        body = await self._read_body(request)
        # In a thread, because a long text takes seconds, in which the event loop must answer other requests.
        parsed = await asyncio.to_thread(_parse, body)
        served = choose_model(parsed.get("model"), self.served)
        completion = await asyncio.to_thread(read_request, kind, parsed, served, self.engine.capacity)
        pending = PendingRequest(completion, self.engine, served)
        objects = CompletionObjects(served.name, completion.body.stream_options.include_usage, kind is ChatBody)
        if completion.body.stream:
            return SseResponse(pending, objects)
        await pending.finish(request)
        return await asyncio.to_thread(JSONResponse, objects.whole(pending.answers(), pending.usage()))

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

    async def _read_body(self, request: Request) -> bytes:
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

    def _describe(self, served: ServedModel) -> dict[str, Any]:
        recipe = resolve(served.model, served.generation_config, served.tokenizer)
        return {
            "id": served.name,
            "object": "model",
            "created": self.start,
            "owned_by": "hf-dparallel",
            "max_model_len": longest_sequence(served.model),
            "parent": served.parent,
            "decoding": {name: value for name, value in recipe.settings().items() if name in requestable_settings()},
        }


def make_app(
    models: dict[str, ServedModel], engine: Engine, api_key: str | None = None, max_request_bytes: int = 2**20
) -> Starlette:
    """Returns the application. It closes the engine when it shuts down."""
    api = Api(models, engine, api_key, max_request_bytes)
    handlers: dict[Any, Any] = {
        RequestError: _refuse,
        HTTPException: _refuse_route,
        ClientDisconnect: _drop,
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
        exception_handlers=handlers,
        lifespan=lifespan,
    )


def _parse(body: bytes) -> dict[str, Any]:
    try:
        parsed = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(f"The body is not valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise RequestError("The body must be a JSON object.")
    return parsed


def _failure(error: Exception) -> RequestError:
    if isinstance(error, RequestError):
        return error
    reason = f"Decoding failed with {type(error).__name__}. The server's log has the traceback."
    return RequestError(str(error) if isinstance(error, FloatingPointError) else reason, status=500)


async def _refuse(request: Request, error: RequestError) -> Response:
    return JSONResponse(error_body(error), status_code=error.status, headers=error.headers)


async def _refuse_route(request: Request, error: HTTPException) -> Response:
    message = (
        f"{request.method} {request.url.path}: {error.detail}. The endpoints are /v1/chat/completions, "
        "/v1/completions, /v1/models and /health."
    )
    return await _refuse(request, RequestError(message, status=error.status_code))


async def _refuse_unexpected(request: Request, error: Exception) -> Response:
    return await _refuse(request, RequestError("Internal error. The server's log has the traceback.", status=500))


async def _drop(request: Request, error: ClientDisconnect) -> Response:
    # The client has gone and reads no response.
    return Response(status_code=499)
