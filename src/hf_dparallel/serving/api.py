# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""OpenAI's chat endpoint, as an ASGI application: a body becomes a prompt, and the tokens of the engine a response.

What is not supported is refused, never ignored.
"""

import asyncio
import json
import math
import re
import secrets
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, ValidationError
from pydantic_core import from_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_dparallel_rules.settings import SETTINGS, SettingError, suggest

from ..data.chats import encode_chat
from ..data.messages import read_messages
from ..data.thoughts import ThoughtMarkers, split_thought
from ..generation.adapters import set_adapter
from ..generation.compatibility import REVISIONS, longest_sequence
from ..generation.configuration import DiffusionGenerationConfig, check_chat, resolve
from ..generation.inputs import check_prompts
from .engine import Engine, Progress, Prompt, RequestError
from .json import TAGS, JsonAnswer, SchemaError, compile_schema
from .text import IncrementalText, logprobs_to_json
from .tools import read_calls, schema_of_call


# The bytes of a body.
_LARGEST = 2**20


# Fields that may only have values at which they do nothing: 0, false or empty.
_UNSUPPORTED = ("echo", "suffix", "presence_penalty", "frequency_penalty", "logit_bias", "store", "functions")
# Hints without effect. The settings of decoding say how much work an answer takes.
_HINTS = {
    "user",
    "metadata",
    "safety_identifier",
    "reasoning_effort",
    "verbosity",
    "prompt_cache_key",
    "parallel_tool_calls",
    "service_tier",
}
# The fields that a message, or the first delta of one, begins with.
_BEGINNING = {"role": "assistant", "refusal": None}
# The names by which this machine calls itself, with a port or without.
_LOCAL_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?", re.IGNORECASE)


class Function(BaseModel, extra="allow"):
    name: str


class Tool(BaseModel, extra="allow"):
    type: Literal["function"] = "function"
    function: Function


class JsonSchema(BaseModel, extra="allow"):
    value: dict[str, Any] = Field(alias="schema")


class ResponseFormat(BaseModel, extra="forbid"):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class ChatBody(BaseModel):
    """The body of a request. Further fields are settings of decoding."""

    model_config = ConfigDict(extra="allow", strict=True)

    messages: Annotated[list[dict[str, Any]], Field(min_length=1, fail_fast=True)]
    model: Any = None
    stream: bool = False
    stream_options: dict[Literal["include_usage"], bool] = {}
    seed: Annotated[int, Field(gt=-(2**62), lt=2**62)] | None = None
    # Each string is searched for after every token. OpenAI accepts four.
    stop: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=256)]],
        Field(max_length=16, fail_fast=True),
        BeforeValidator(lambda stop: [stop] if isinstance(stop, str) else stop),
    ] = []
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None
    tools: Annotated[list[Tool], Field(max_length=128, fail_fast=True)] = []
    tool_choice: Literal["none", "auto", "required"] | Tool = "auto"
    response_format: ResponseFormat = ResponseFormat(type="text")
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    # Arguments of the chat template, as in vLLM and SGLang.
    chat_template_kwargs: dict[str, Any] = {}


@dataclass
class ServedModel:
    """A model in the API, under its `name` there: the base model, or the base model with one adapter.

    `generation_config` overrides the model's recipe, is overridden by requests, and is resolved here. `adapter` is
    PEFT's name of the adapter.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    generation_config: DiffusionGenerationConfig
    adapter: str | None = None

    def __post_init__(self):
        if self.tokenizer.chat_template is None:
            raise ValueError(
                f"`{self.name}` has no chat template: it continues text, and the server only chats. Give its "
                "tokenizer a template, as docs/serving.md shows, or use `hf-dparallel generate`."
            )

        # While its own recipe is the active one.
        set_adapter(self.model, self.adapter)
        check_chat(self.model, self.generation_config.chat_template_kwargs)
        self.generation_config = resolve(self.model, self.generation_config, self.tokenizer)


def _shortened(value: object) -> str:
    text = str(value)
    if len(text) <= 80:
        return text
    return f"{text[:77]}..."


def _read_body(given: dict[str, Any]) -> ChatBody:
    """Reads the fields of a request. A field that is `None` counts as not set."""
    given = {name: value for name, value in given.items() if value is not None and name not in _HINTS}
    num_answers = given.pop("n", 1)
    if num_answers != 1:
        raise RequestError("`n` must be 1: send one request for each answer, they share passes.", "n")
    for name in _UNSUPPORTED:
        value = given.pop(name, None)
        if value:
            raise RequestError(f"`{name}={_shortened(value)}` is not supported. Leave it out.", name)

    try:
        body = ChatBody.model_validate(given)
    except ValidationError as invalid:
        error = invalid.errors(include_url=False, include_context=False)[0]
        place = _shortened(".".join(map(str, error["loc"])))
        message = f"`{place}`: {error['msg']}, got {_shortened(error['input'])}."
        raise RequestError(message, str(error["loc"][0])) from None

    settings = [name for name, setting in SETTINGS.items() if setting.has_flag]
    for name in body.model_extra or ():
        if name not in settings:
            hint = suggest(name, [*ChatBody.model_fields, *settings])
            raise RequestError(f"Unknown field `{_shortened(name)}`. {hint or 'Leave it out.'}", _shortened(name))
    return body


def _read_settings(body: ChatBody, served: ServedModel) -> tuple[DiffusionGenerationConfig, int]:
    """Returns the generation settings and the largest number of tokens of the answer.

    `max_tokens` does not shorten the canvas, so a shorter answer is the beginning of a longer one, and requests with
    different `max_tokens` share passes. Above `max_new_tokens` it extends the canvas by whole blocks.
    """
    asked = body.model_extra or {}
    base = served.generation_config
    try:
        config = base.updated(**asked) if asked else base
        length = config.max_new_tokens
        if config.is_infilling:
            raise SettingError("max_new_tokens", 0, rule="must be a positive integer")

        max_tokens = body.max_completion_tokens or body.max_tokens or length
        if max_tokens > length and "max_new_tokens" not in asked:
            num_blocks = math.ceil(max_tokens / config.block_length)
            length = num_blocks * config.block_length

        steps_for = (config if "denoising_steps" in asked else base).max_new_tokens
        if length != steps_for:
            steps = config.denoising_steps
            if steps:
                # With as many passes per token.
                steps = math.ceil(steps * length / steps_for)
            config = config.updated(max_new_tokens=length, denoising_steps=steps)
        served.model.check_settings(config)
    except ValueError as error:
        setting = getattr(error, "setting", None)
        raise RequestError(str(error), setting if setting in asked else None) from error
    return config, min(max_tokens, length)


def _read_tools(body: ChatBody) -> tuple[list[dict[str, Any]], bool]:
    """Returns the tools that may be called, and whether one must be."""
    tools = [tool.model_dump(exclude_none=True) for tool in body.tools]
    choice = body.tool_choice
    if choice == "none":
        return [], False

    if isinstance(choice, Tool):
        tools = [tool for tool in tools if tool["function"]["name"] == choice.function.name]
    must_call = choice != "auto"
    if must_call and not tools:
        raise RequestError("`tool_choice` must name one of the `tools`.", "tool_choice")
    return tools, must_call


def _read_schema(
    body: ChatBody,
    tools: list[dict[str, Any]],
    must_call: bool,
    config: DiffusionGenerationConfig,
    served: ServedModel,
) -> JsonAnswer | None:
    """Returns the beginning of an answer that follows a schema: that of `response_format`, or of a forced call."""
    name = "response_format"
    form = body.response_format
    if (form.type == "json_schema") is (form.json_schema is None):
        raise RequestError(f"`{name}` must have the type json_schema and a schema, or neither.", name)

    schema: dict[str, Any] | None = {"type": "object"}
    if form.json_schema:
        schema = form.json_schema.value
    if must_call:
        name = "tools"
        schema = None
    elif form.type == "text":
        return None

    if not config.stop_at_eos or not config.eos_token_ids:
        raise RequestError(f"`{name}` needs an end-of-sequence token, and `stop_at_eos=true`.", name)
    for setting in filter(config.is_on, REVISIONS):
        off = SETTINGS[setting].default
        remedy = f"Send `{setting}={off}`."
        if off is None:
            remedy = f"Leave out `{setting}`."
        raise RequestError(f"`{name}` needs settings that revise no tokens. {remedy}", name)

    try:
        size = served.model.config.vocab_size
        call = schema_of_call(tools) if tools else None
        return compile_schema(schema, call, served.tokenizer, size, config.eos_token_ids)
    except ValueError as error:
        raise RequestError(f"`{name}` cannot be answered: {error}", name) from error


def _encode(
    body: ChatBody, config: DiffusionGenerationConfig, served: ServedModel, arguments: dict[str, Any]
) -> torch.LongTensor:
    """Returns the token ids of the chat, `(prompt_length,)`, after checking that they can be decoded."""
    longest = longest_sequence(served.model)
    try:
        messages = read_messages(body.messages, "messages")
        for message in messages:
            # OpenAI's newer name of the role.
            message["role"] = message["role"].replace("developer", "system")
        ids = encode_chat(served.tokenizer, messages, **arguments)
        if config.mask_token_id in ids:
            mask = served.tokenizer.convert_ids_to_tokens(config.mask_token_id)
            raise ValueError(f"they contain {mask!r}, the mask token, which stands for text to come. Remove it.")
        if longest is None or len(ids) + config.max_new_tokens <= longest:
            return check_prompts(torch.tensor([ids], dtype=torch.long), None, config, served.model)[0]
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError) as error:
        # A template is a program, which may fail in any way.
        raise RequestError(f"`messages` cannot be decoded: {error}", "messages") from error
    # OpenAI's words, by which clients recognize this error.
    raise RequestError(
        f"This model's maximum context length is {longest} tokens. `messages` has {len(ids)} and the answer may "
        f"have {config.max_new_tokens}. Shorten the prompt, or lower `max_tokens` and `max_new_tokens`.",
        "max_tokens" if body.max_completion_tokens or body.max_tokens else "messages",
        code="context_length_exceeded",
    )


class Completion:
    """The answer to what a JSON object asks for. Raises a [`RequestError`] for what is not supported."""

    def __init__(self, given: dict[str, Any], served: ServedModel):
        self.body = body = _read_body(given)
        tokenizer = served.tokenizer
        if body.top_logprobs and not body.logprobs:
            raise RequestError("`top_logprobs` needs `logprobs`. Set that to true.", "top_logprobs")

        config, max_tokens = _read_settings(body, served)
        self._tools, must_call = _read_tools(body)
        schema = _read_schema(body, self._tools, must_call, config, served)

        arguments = (config.chat_template_kwargs or {}) | body.chat_template_kwargs
        self._markers = None
        if schema is None:
            self._markers = ThoughtMarkers.of(tokenizer, config.thought_markers, arguments)
        # An answer that must call follows a schema, whether the template shows the tools or not.
        if self._tools and (not must_call or re.search(r"\btools\b", tokenizer.get_chat_template(tools=self._tools))):
            arguments = arguments | {"tools": self._tools}

        self.prompt = Prompt(
            input_ids=_encode(body, config, served, arguments),
            config=config,
            max_tokens=max_tokens,
            seed=secrets.randbits(62) if body.seed is None else body.seed,
            adapter=served.adapter,
            json=schema,
            num_logprobs=body.top_logprobs if body.logprobs else None,
        )

        shown = TAGS if self._tools else ()
        self.text = IncrementalText(tokenizer, body.stop or config.stop_strings, self._markers, shown)
        self.nfe = 0
        self.finish_reason: str | None = None
        # What the client has got: the thought, the text without it and calls, the calls, and the log-probabilities.
        self.thought = ""
        self.content = ""
        self.calls: list[dict[str, Any]] = []
        self.logprobs: list[dict[str, Any]] = []
        self._has_begun = False
        self._head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": served.name}

    def add(self, progress: Progress) -> dict[str, Any]:
        """Adds the tokens of a pass, and returns what is new for the client, as the choice of a chunk."""
        num_tokens = len(self.text.tokens)
        before = self.text.tokens[-1:]
        self.text.add(progress.tokens, progress.finish_reason is not None)

        self.nfe = progress.nfe
        self.finish_reason = progress.finish_reason
        if self.text.is_stopped:
            self.finish_reason = "stop"
        is_whole = self.finish_reason is not None

        thought, content = split_thought(self._markers, self.text.text, is_whole)
        if self._tools:
            content, self.calls = read_calls(content, self._tools, is_whole)
        if self.calls:
            self.finish_reason = "tool_calls"

        # A stop string may have ended the answer before the last of the tokens.
        measured = zip(self.text.tokens[num_tokens:], progress.logprobs, strict=False)
        logprobs = logprobs_to_json(self.text.tokenizer, before, measured)

        choice = self._choice("delta", thought[len(self.thought) :], content[len(self.content) :], logprobs)
        if not self._has_begun:
            # Clients join what deltas say, also the roles.
            choice["delta"] = _BEGINNING | choice["delta"]
            self._has_begun = True

        self.thought = thought
        self.content = content
        self.logprobs += logprobs
        return choice

    def submit(self, engine: Engine) -> None:
        """Has the prompt decoded. Raises a [`RequestError`] if too many wait."""
        loop = asyncio.get_running_loop()
        self._told = asyncio.Queue[Progress]()

        def put(progress: Progress) -> None:
            loop.call_soon_threadsafe(self._told.put_nowait, progress)

        self.prompt.listener = put
        engine.submit(self.prompt)

    async def choices(self) -> AsyncIterator[dict[str, Any]]:
        """Yields the choices of chunks until the answer has ended, and frees the slot, also if it is cancelled."""
        try:
            while self.finish_reason is None:
                progress = await self._told.get()
                if progress.error is not None:
                    raise _as_request_error(progress.error)
                yield self.add(progress)
        finally:
            self.prompt.is_given_up = True

    async def end_with(self, request: Request) -> None:
        """Waits until the client has left, also while the prompt waits for a slot, and ends the answer."""
        message = await request.receive()
        while message["type"] != "http.disconnect":
            message = await request.receive()

        error = RequestError("The client has left.", status=499)
        self._told.put_nowait(Progress([], nfe=0, error=error))

    async def events(self) -> AsyncIterator[str]:
        """Yields the server-sent events of a stream."""
        head = self._head | {"object": "chat.completion.chunk"}
        has_usage = self.body.stream_options.get("include_usage", False)
        # OpenAI's chunks have an empty usage if the last one has the usage.
        empty = {"usage": None} if has_usage else {}

        try:
            async for choice in self.choices():
                yield f"data: {json.dumps(head | {'choices': [choice]} | empty)}\n\n"
            if has_usage:
                yield f"data: {json.dumps(head | {'choices': [], 'usage': self.usage()})}\n\n"
            yield "data: [DONE]\n\n"
        except RequestError as error:
            # The HTTP status is already sent.
            yield f"data: {json.dumps(_error_body(error))}\n\n"

    def whole(self) -> dict[str, Any]:
        """Returns the response to a request without `stream`."""
        choice = self._choice("message", self.thought, self.content, self.logprobs)
        choice["message"] = _BEGINNING | choice["message"]
        return self._head | {"object": "chat.completion", "choices": [choice], "usage": self.usage()}

    def _choice(self, key: str, thought: str, content: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        message: dict[str, Any] = {"content": content}
        if thought:
            message["reasoning_content"] = thought
        if self.calls:
            calls = [{"index": index} | call for index, call in enumerate(self.calls)]
            message |= {"content": content or None, "tool_calls": calls}
        measured = {"content": logprobs, "refusal": None} if logprobs else None
        return {"index": 0, key: message, "logprobs": measured, "finish_reason": self.finish_reason}

    def usage(self) -> dict[str, Any]:
        """Returns OpenAI's token counts, the forward passes of the answer, and tokens per forward pass."""
        num_prompt = len(self.prompt.input_ids)
        num_tokens = len(self.text.tokens)
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_tokens,
            "total_tokens": num_prompt + num_tokens,
            "nfe": self.nfe,
            "tokens_per_forward": round(num_tokens / self.nfe, 4) if self.nfe else 0.0,
        }


class Api:
    """The endpoints. A request without `model` is answered by the first model."""

    def __init__(self, models: dict[str, ServedModel], engine: Engine, api_key: str | None, is_local: bool):
        self.models = models
        self.engine = engine
        self.api_key = api_key
        self.is_local = is_local
        self.start = int(time.time())

    async def complete(self, request: Request) -> Response:
        """Answers `POST /v1/chat/completions`."""
        self._check(request)
        # A page of another site that is open in a browser on this machine may send other types without asking.
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RequestError("The body must be JSON. Send the header `Content-Type: application/json`.", status=415)

        content = b""
        async for part in request.stream():
            content += part
            if len(content) > _LARGEST:
                # uvicorn drops the rest: a client may send the whole body before it reads the error.
                message = f"The body is longer than {_LARGEST} bytes. Send a shorter prompt."
                raise RequestError(message, status=413)

        # In a thread, because a long text takes seconds, in which the event loop must answer other requests.
        completion = await asyncio.to_thread(self._read, content)
        completion.submit(self.engine)
        if completion.body.stream:
            headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
            return StreamingResponse(completion.events(), headers=headers, media_type="text/event-stream")

        watcher = asyncio.create_task(completion.end_with(request))
        async for _ in completion.choices():
            pass
        watcher.cancel()
        return JSONResponse(completion.whole())

    def _read(self, content: bytes) -> Completion:
        try:
            given = from_json(content, allow_inf_nan=False)
        except ValueError as error:
            raise RequestError(f"The body is not valid JSON: {error}") from error
        if not isinstance(given, dict):
            raise RequestError("The body must be a JSON object.")

        name = given.get("model") or next(iter(self.models))
        if not isinstance(name, str) or name not in self.models:
            served = ", ".join(f"`{known}`" for known in self.models)
            message = f"The model `{_shortened(name)}` does not exist. This server has {served}."
            raise RequestError(message, "model", 404, "model_not_found")
        return Completion(given, self.models[name])

    async def list_models(self, request: Request) -> Response:
        """Answers `GET /v1/models`."""
        self._check(request)
        about = {"object": "model", "created": self.start, "owned_by": "hf-dparallel"}
        data = []
        for name, served in self.models.items():
            data.append({"id": name, "max_model_len": longest_sequence(served.model), **about})
        return JSONResponse({"object": "list", "data": data})

    async def health(self, request: Request) -> Response:
        """Answers `GET /health`."""
        self._check(request, needs_key=False)
        if self.engine.is_alive:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "closed"}, status_code=503)

    def _check(self, request: Request, needs_key: bool = True) -> None:
        """Raises a [`RequestError`] for a request of two lengths, to another host, or without the API key."""
        if {"content-length", "transfer-encoding"} <= set(request.headers):
            # A proxy may read the other one, and what follows as a further request (RFC 9112, 6.1).
            message = "The request has both Content-Length and Transfer-Encoding. Send one of them."
            raise RequestError(message, headers={"Connection": "close"})

        host = request.headers.get("host", "localhost")
        if self.is_local and self.api_key is None and not _LOCAL_HOST.fullmatch(host):
            # A site whose name is made to mean this machine (DNS rebinding) is of the same origin for a browser.
            raise RequestError(
                f"This server answers this machine only, and the request is to `{_shortened(host)}`. Send the header "
                "`Host: localhost`, or start the server with an API key.",
                status=403,
            )

        if self.api_key is None or not needs_key:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not secrets.compare_digest(given.encode(), self.api_key.encode()):
            raise RequestError(
                "The API key is missing or wrong. Send the header `Authorization: Bearer KEY`.",
                status=401,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )


def make_app(
    models: dict[str, ServedModel], engine: Engine, api_key: str | None = None, is_local: bool = False
) -> Starlette:
    """Returns the application. With `is_local` and no key, requests must be to a loopback address by its name."""
    api = Api(models, engine, api_key, is_local)
    return Starlette(
        routes=[
            Route("/v1/chat/completions", api.complete, methods=["POST"]),
            Route("/v1/models", api.list_models),
            Route("/health", api.health),
        ],
        exception_handlers=dict.fromkeys((RequestError, HTTPException, ClientDisconnect, Exception), _respond),
    )


def _as_request_error(error: Exception) -> RequestError:
    """Returns what clients are told of any error."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, HTTPException):
        message = f"{error.detail}. The endpoints are /v1/chat/completions, /v1/models and /health."
        return RequestError(message, status=error.status_code, headers={"Connection": "close"})
    if isinstance(error, ClientDisconnect):
        return RequestError("The client has left.", status=499)
    if isinstance(error, SchemaError):
        return RequestError(str(error))
    if isinstance(error, FloatingPointError):
        return RequestError(str(error), status=500)
    reason = f"The request failed with {type(error).__name__}. The server's log has the traceback."
    return RequestError(reason, status=500)


async def _respond(request: Request, error: Exception) -> Response:
    told = _as_request_error(error)
    return JSONResponse(_error_body(told), status_code=told.status, headers=told.headers)


def _error_body(error: RequestError) -> dict[str, Any]:
    """Returns OpenAI's error object."""
    kind = "invalid_request_error"
    if error.status >= 500:
        kind = "server_error"
    elif error.status == 401:
        kind = "authentication_error"
    elif error.status == 429:
        kind = "rate_limit_error"
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}
