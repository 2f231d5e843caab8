# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""OpenAI's endpoints, as an ASGI application: a body becomes prompts, and the tokens of the engine a response.

What is not supported is refused, never ignored.
"""

import asyncio
import gc
import json
import re
import secrets
import socket
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
import uvicorn
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, ValidationError
from pydantic_core import from_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_dparallel_rules.settings import SETTINGS, SettingError, suggest

from ..data.prompts import encode_text
from ..data.thoughts import ThoughtMarkers, split_thought
from ..generation.compatibility import REVISIONS, check, longest_sequence
from ..generation.configuration import DiffusionGenerationConfig, resolve
from ..generation.inputs import check_prompts
from .engine import Engine, Progress, Prompt, RequestError
from .json import JsonAnswer, SchemaError, compile_schema
from .text import IncrementalText, encode_chat, logprobs_to_json
from .tools import read_calls, schema_of_call


# The settings of decoding that a request may have.
REQUEST_SETTINGS = [name for name, setting in SETTINGS.items() if setting.has_flag]
# Fields that may only have values at which they do nothing: 0, false or empty.
_UNSUPPORTED = ("echo", "suffix", "presence_penalty", "frequency_penalty", "logit_bias", "store", "functions")
# Hints without effect. The settings of decoding say how much work an answer takes.
_HINTS = {"user", "metadata", "safety_identifier", "reasoning_effort", "verbosity", "prompt_cache_key"}
_HINTS |= {"parallel_tool_calls", "service_tier"}
# The bytes of a body.
_LARGEST = 2**20


class Part(BaseModel):
    """An object whose further fields go to the chat template, among them what clients add to an earlier answer."""

    model_config = ConfigDict(extra="allow", strict=True)


class TextPart(Part):
    type: Literal["text"]
    text: str


class Function(Part):
    name: str


class Tool(Part):
    type: Literal["function"] = "function"
    function: Function


class ToolChoice(Part, extra="forbid"):
    type: Literal["none", "auto", "required", "function"]
    function: Function | None = None

    @property
    def must_call(self) -> bool:
        return self.type in ("required", "function")


class ResponseFormat(Part, extra="forbid"):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None


class Message(Part):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        list[TextPart] | None,
        BeforeValidator(lambda text: [{"type": "text", "text": text}] if isinstance(text, str) else text),
    ] = None
    tool_calls: list[Tool] | None = None

    def for_template(self) -> dict[str, Any]:
        """Returns the message for the chat template, with decoded arguments, which the template writes as JSON."""
        if not self.content and self.role != "assistant":
            raise ValueError(f"A message of the role {self.role} has no `content`.")
        message = self.model_dump(exclude_none=True)
        # OpenAI's newer name of the role.
        message["role"] = "system" if self.role == "developer" else self.role
        message["content"] = "".join(part.text for part in self.content or ())
        for call in message.get("tool_calls", ()):
            with suppress(ValueError, LookupError, TypeError):
                call["function"]["arguments"] = from_json(call["function"]["arguments"])
        return message


class Body(BaseModel):
    """The fields that chats and texts have in common. Each prompt gets `n` answers."""

    model_config = ConfigDict(extra="forbid", strict=True)
    # The field with the prompt, and the kind and the prefix of the id of the response.
    names: ClassVar[tuple[str, str, str]]

    model: Any = None
    stream: bool = False
    stream_options: dict[Literal["include_usage"], bool] = {}
    seed: Annotated[int, Field(gt=-(2**62), lt=2**62)] | None = None
    n: PositiveInt = 1
    # Each string is searched for after every token. OpenAI accepts four.
    stop: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=256)]],
        Field(max_length=16, fail_fast=True),
        BeforeValidator(lambda stop: [stop] if isinstance(stop, str) else stop),
    ] = []
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None


class ChatBody(Body):
    """The body of `/v1/chat/completions`."""

    names = ("messages", "chat.completion", "chatcmpl")

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    tools: Annotated[list[Tool], Field(max_length=128, fail_fast=True)] = []
    tool_choice: Annotated[
        ToolChoice, BeforeValidator(lambda kind: {"type": kind} if isinstance(kind, str) else kind)
    ] = ToolChoice(type="auto")
    response_format: ResponseFormat = ResponseFormat(type="text")
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    # Arguments of the chat template, as in vLLM and SGLang.
    chat_template_kwargs: dict[str, Any] = {}


class TextBody(Body):
    """The body of `/v1/completions`."""

    names = ("prompt", "text_completion", "cmpl")

    prompt: str | list[int] | list[str] | list[list[int]]


@dataclass
class ServedModel:
    """A model in the API, under its `name` there: the base model, or the base model with one adapter.

    `generation_config` overrides the model's recipe, and is overridden by requests. It is resolved if several adapters
    are served, because the recipe of another adapter may be active when a request comes. `adapter` is PEFT's name of
    the adapter.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    generation_config: DiffusionGenerationConfig
    adapter: str | None = None


def _shortened(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _read_body(kind: type[ChatBody | TextBody], given: dict[str, Any]) -> ChatBody | TextBody:
    """Returns the fields of a request without its settings of decoding. A field that is `None` counts as not set."""
    given = {name: value for name, value in given.items() if value is not None}
    for name in filter(given.get, _UNSUPPORTED):
        raise RequestError(f"`{name}={_shortened(given[name])}` is not supported. Leave it out.", name)
    unknown = (name for name in given if name not in {*kind.model_fields, *REQUEST_SETTINGS, *_UNSUPPORTED, *_HINTS})
    for name in map(_shortened, unknown):
        names = (*kind.model_fields, *REQUEST_SETTINGS)
        hint = suggest(name, names) or f"Fields: {', '.join(names)}."
        raise RequestError(f"Unknown field `{name}`. {hint}", name)
    try:
        return kind.model_validate({name: given[name] for name in kind.model_fields if name in given})
    except ValidationError as invalid:
        error = invalid.errors(include_url=False, include_context=False)[0]
    if error["loc"][0] == "prompt" and error["type"] != "missing":
        error |= {"loc": ("prompt",), "msg": "Input should be a text, token ids, or a list of either"}
    place = "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in error["loc"])
    place = _shortened(place.removeprefix("."))
    raise RequestError(f"`{place}`: {error['msg']}, got {_shortened(error['input'])}.", place)


def _read_settings(body: Body, asked: dict[str, Any], served: ServedModel) -> tuple[DiffusionGenerationConfig, int]:
    """Returns the generation settings and the largest number of tokens of the answer.

    `max_tokens` does not shorten the canvas, so a shorter answer is the beginning of a longer one, and requests with
    different `max_tokens` share passes. Above `max_new_tokens` it extends the canvas by whole blocks.
    """

    def of_length(config: DiffusionGenerationConfig, length: int) -> DiffusionGenerationConfig:
        # With as many passes per token.
        steps = config.denoising_steps
        scaled = None if steps is None else -(-steps * length // config.max_new_tokens)
        return config.updated(max_new_tokens=length, denoising_steps=scaled)

    try:
        given, length = served.generation_config, SETTINGS["max_new_tokens"].read(asked.get("max_new_tokens"))
        if length and given.max_new_tokens:
            given = of_length(given, length)
        config = resolve(served.model, given, served.tokenizer, **asked)
        if config.is_infilling:
            raise RequestError("`max_new_tokens` must be a positive integer, got 0.", "max_new_tokens")
        max_tokens = body.max_completion_tokens or body.max_tokens or config.max_new_tokens
        if max_tokens > config.max_new_tokens and length is None:
            config = of_length(config, -(-max_tokens // config.block_length) * config.block_length)
        check(config, served.model)
    except ValueError as error:
        setting = error.setting if isinstance(error, SettingError) else None
        raise RequestError(str(error), setting if setting in asked else None) from error
    return config, min(max_tokens, config.max_new_tokens)


def _read_tools(
    body: ChatBody, served: ServedModel, config: DiffusionGenerationConfig
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns the tools that may be called, and the arguments of the chat template: the request's before others."""
    arguments = (config.chat_template_kwargs or {}) | body.chat_template_kwargs
    tools, choice = [tool.model_dump(exclude_none=True) for tool in body.tools], body.tool_choice
    if choice.function is not None:
        tools = [tool for tool in tools if tool["function"]["name"] == choice.function.name]
    if choice.must_call and (not tools or (choice.type == "function") is (choice.function is None)):
        raise RequestError("`tool_choice` must name one of the `tools`.", "tool_choice")
    if not tools or choice.type == "none":
        return [], arguments
    # An answer that must call follows a schema, whether the template shows the tools or not.
    is_shown = not choice.must_call or re.search(r"\btools\b", served.tokenizer.get_chat_template(tools=tools))
    return tools, arguments | ({"tools": tools} if is_shown else {})


def _read_schema(
    body: ChatBody, tools: list[dict[str, Any]], config: DiffusionGenerationConfig, served: ServedModel
) -> JsonAnswer | None:
    """Returns the beginning of an answer that follows a schema: that of `response_format`, or of a forced call."""
    name, form = "response_format", body.response_format
    schema = (form.json_schema or {}).get("schema")
    if (form.type == "json_schema") is not isinstance(schema, dict):
        raise RequestError(f"`{name}` must have the type json_schema and a schema, or neither.", name)
    if form.type == "json_object":
        schema = {"type": "object"}
    if body.tool_choice.must_call:
        name, schema = "tools", None
    elif schema is None:
        return None
    if not config.stop_at_eos or not config.eos_token_ids:
        raise RequestError(f"`{name}` needs an end-of-sequence token, and `stop_at_eos=true`.", name)
    for setting in filter(config.is_on, REVISIONS):
        off = SETTINGS[setting].default
        remedy = f"Leave out `{setting}`." if off is None else f"Send `{setting}={off}`."
        raise RequestError(f"`{name}` needs settings that revise no tokens. {remedy}", name)
    call = schema_of_call(tools) if tools else None
    try:
        return compile_schema(schema, call, served.tokenizer, served.model.config.vocab_size, config.eos_token_ids)
    except ValueError as error:
        raise RequestError(f"`{name}` cannot be answered: {error}", name) from error


def _encode(
    prompt: Any,
    body: ChatBody | TextBody,
    config: DiffusionGenerationConfig,
    served: ServedModel,
    arguments: dict[str, Any],
) -> torch.LongTensor:
    """Returns the token ids of a prompt, `(prompt_length,)`, after checking that they can be decoded."""
    name, longest = body.names[0], longest_sequence(served.model)
    try:
        if isinstance(prompt, str):
            ids = encode_text(served.tokenizer, prompt)
        elif isinstance(body, ChatBody):
            ids = encode_chat([message.for_template() for message in prompt], served.tokenizer, **arguments)
        else:
            ids = prompt
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError) as error:
        # A template is a program, which may fail in any way.
        raise RequestError(str(error), name) from error
    if longest is not None and len(ids) + config.max_new_tokens > longest:
        # OpenAI's words, by which clients recognize this error.
        raise RequestError(
            f"This model's maximum context length is {longest} tokens. `{name}` has {len(ids)} and the answer may "
            f"have {config.max_new_tokens}. Shorten the prompt, or lower `max_tokens` and `max_new_tokens`.",
            "max_tokens" if body.max_completion_tokens or body.max_tokens else name,
            code="context_length_exceeded",
        )
    try:
        input_ids = torch.tensor([ids], dtype=torch.long)
        return check_prompts(input_ids, None, config, served.model)[0]
    except (ValueError, OverflowError, RuntimeError) as error:
        raise RequestError(f"`{name}` cannot be decoded: {error}", name) from error


@dataclass
class Choice:
    """The answer to one prompt, as a client receives it: one choice of the response."""

    index: int
    text: IncrementalText
    markers: ThoughtMarkers | None = None
    nfe: int = 0
    finish_reason: str | None = None
    # What the client is told: the thought, the text without it and calls, the calls, and the log-probabilities.
    thought: str = ""
    content: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)

    def add(self, progress: Progress, tools: list[dict[str, Any]]) -> tuple[str, str, list[dict[str, Any]]]:
        """Adds the tokens of a pass, and returns what is new for the client: thought, content, log-probabilities."""
        text, num_tokens, num_sent = self.text, len(self.text.tokens), (len(self.thought), len(self.content))
        # The token before others decides whether their text begins with a space.
        before = text.tokens[-1:]
        text.add(progress.tokens, progress.finish_reason is not None)
        self.nfe, self.finish_reason = progress.nfe, "stop" if text.is_stopped else progress.finish_reason
        is_whole = self.finish_reason is not None
        self.thought, self.content = split_thought(self.markers, text.text, is_whole)
        if tools:
            self.content, self.calls = read_calls(self.content, tools, is_whole)
        if self.calls:
            self.finish_reason = "tool_calls"
        # A stop string may have ended the answer before the last of the tokens.
        measured = zip(text.tokens[num_tokens:], progress.logprobs, strict=False)
        logprobs = logprobs_to_json(text.tokenizer, before, measured)
        self.logprobs += logprobs
        return self.thought[num_sent[0] :], self.content[num_sent[1] :], logprobs


class Completion:
    """The answers to what a JSON object asks for, at most `max_prompts`: one to each prompt.

    Raises a [`RequestError`] for what is not supported.
    """

    def __init__(self, kind: type[ChatBody | TextBody], given: dict[str, Any], served: ServedModel, max_prompts: int):
        self.body = body = _read_body(kind, given)
        asked = {name: given[name] for name in REQUEST_SETTINGS if given.get(name) is not None}
        config, max_tokens = _read_settings(body, asked, served)
        self._tools: list[dict[str, Any]] = []
        arguments, answer, num_logprobs, markers = dict[str, Any](), None, None, None
        if isinstance(body, ChatBody):
            if served.tokenizer.chat_template is None:
                raise RequestError(
                    "The tokenizer of this model has no chat template. Use /v1/completions.", "messages"
                )
            prompts: list[Any] = [body.messages]
            self._tools, arguments = _read_tools(body, served, config)
            answer = _read_schema(body, self._tools, config, served)
            num_logprobs = body.top_logprobs if body.logprobs else None
            if body.top_logprobs and not body.logprobs:
                raise RequestError("`top_logprobs` needs `logprobs`. Set that to true.", "top_logprobs")
            if answer is None:
                of_template = {name: value for name, value in arguments.items() if name != "tools"}
                markers = ThoughtMarkers.of(served.tokenizer, of_template)
        else:
            is_one = isinstance(body.prompt, str) or not body.prompt or isinstance(body.prompt[0], int)
            prompts = [body.prompt] if is_one else list(body.prompt)
        name = body.names[0] if body.n == 1 else "n"
        if (number := len(prompts) * body.n) > max_prompts:
            raise RequestError(f"`{name}` asks for {number} answers. Ask for at most {max_prompts}.", name)
        if body.n > 1 and not config.temperature:
            raise RequestError(f"`n={body.n}` would give equal answers at temperature 0. Set `temperature`.", "n")
        seed = secrets.randbits(62) if body.seed is None else body.seed
        encoded = [_encode(prompt, body, config, served, arguments) for prompt in prompts]
        self.prompts = [
            Prompt(ids, config, max_tokens, seed + index, served.adapter, answer and answer.copy(), num_logprobs)
            for index, ids in enumerate(ids for ids in encoded for _ in range(body.n))
        ]
        self.stop = body.stop or config.stop_strings
        self.choices = [
            Choice(index, IncrementalText(served.tokenizer, self.stop), markers) for index in range(len(self.prompts))
        ]
        _, self._kind, prefix = body.names
        self._head = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": served.name}
        # The index of a choice and its new tokens; `None` after the client has gone.
        self._progress: asyncio.Queue[tuple[int, Progress] | None] = asyncio.Queue()

    def submit(self, engine: Engine) -> None:
        """Has the prompts decoded. Raises a [`RequestError`] if too many wait."""
        self._engine, loop = engine, asyncio.get_running_loop()

        def put(index: int, progress: Progress) -> None:
            loop.call_soon_threadsafe(self._progress.put_nowait, (index, progress))

        for index, prompt in enumerate(self.prompts):
            prompt.listener = partial(put, index)
        engine.submit(self.prompts)

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        """Yields the choices of chunks until all answers have ended, and frees the slots, also if it is cancelled."""
        try:
            while any(choice.finish_reason is None for choice in self.choices):
                item = await self._progress.get()
                if item is None:
                    raise ClientDisconnect
                index, progress = item
                choice = self.choices[index]
                if choice.finish_reason is not None:
                    continue  # a stop string ended the answer while the decoding thread ran another pass
                if progress.error is not None:
                    raise _as_request_error(progress.error)
                yield self._to_json("delta", choice, *choice.add(progress, self._tools))
                if choice.finish_reason is not None:
                    self._engine.give_up([self.prompts[index]])
        finally:
            self._engine.give_up(self.prompts)

    async def events(self) -> AsyncIterator[str]:
        """Yields the server-sent events of a stream."""
        head = self._head | {"object": self._kind + ".chunk" * isinstance(self.body, ChatBody)}
        has_usage = self.body.stream_options.get("include_usage", False)
        # OpenAI's chunks have an empty usage if the last one has the usage.
        empty = {"usage": None} if has_usage else {}
        try:
            async for choice in self.chunks():
                yield f"data: {json.dumps(head | {'choices': [choice]} | empty)}\n\n"
            if has_usage:
                yield f"data: {json.dumps(head | {'choices': [], 'usage': self.usage()})}\n\n"
            yield "data: [DONE]\n\n"
        except RequestError as error:
            # The HTTP status is already sent.
            yield f"data: {json.dumps(_error_body(error))}\n\n"

    async def whole(self, request: Request) -> dict[str, Any]:
        """Returns the whole response. Raises `ClientDisconnect` if the client leaves first."""

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            self._progress.put_nowait(None)

        watcher = asyncio.create_task(watch())
        async for _ in self.chunks():
            pass
        watcher.cancel()
        choices = [self._to_json("message", each, each.thought, each.content, each.logprobs) for each in self.choices]
        return self._head | {"object": self._kind, "choices": choices, "usage": self.usage()}

    def _to_json(
        self, key: str, choice: Choice, thought: str, content: str, logprobs: list[dict[str, Any]]
    ) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if thought:
            message["reasoning_content"] = thought
        if choice.calls:
            calls = [{"index": index} | call for index, call in enumerate(choice.calls)]
            message |= {"content": content or None, "tool_calls": calls}
        told = {key: message} if isinstance(self.body, ChatBody) else {"text": content}
        measured = {"content": logprobs, "refusal": None} if logprobs else None
        return {"index": choice.index, **told, "logprobs": measured, "finish_reason": choice.finish_reason}

    def usage(self) -> dict[str, Any]:
        """Returns OpenAI's token counts, the forward passes of all answers, and tokens per forward pass."""
        # Each prompt counts once, however often it is answered.
        num_prompt = sum(len(prompt.input_ids) for prompt in self.prompts[:: self.body.n])
        num_tokens = sum(len(choice.text.tokens) for choice in self.choices)
        nfe = sum(choice.nfe for choice in self.choices)
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_tokens,
            "total_tokens": num_prompt + num_tokens,
            "nfe": nfe,
            "tokens_per_forward": round(num_tokens / nfe, 4) if nfe else 0.0,
        }


class Api:
    """The endpoints. A request without `model` is answered by the first model."""

    def __init__(self, models: dict[str, ServedModel], engine: Engine, api_key: str | None):
        self.models = models
        self.engine = engine
        self.api_key = api_key
        self.start = int(time.time())

    async def complete(self, kind: type[ChatBody | TextBody], request: Request) -> Response:
        """Answers a `POST` whose body has the class `kind`."""
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
        completion = await asyncio.to_thread(self._read, kind, content)
        completion.submit(self.engine)
        if completion.body.stream:
            headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
            return StreamingResponse(completion.events(), headers=headers, media_type="text/event-stream")
        return JSONResponse(await completion.whole(request))

    def _read(self, kind: type[ChatBody | TextBody], content: bytes) -> Completion:
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
        return Completion(kind, given, self.models[name], self.engine.max_prompts)

    async def list_models(self, request: Request) -> Response:
        """Answers `GET /v1/models`."""
        self._check(request)
        about = {"object": "model", "created": self.start, "owned_by": "hf-dparallel"}
        data = [{"id": name, "max_model_len": longest_sequence(each.model)} for name, each in self.models.items()]
        return JSONResponse({"object": "list", "data": [each | about for each in data]})

    async def health(self, request: Request) -> Response:
        """Answers `GET /health`."""
        self._check(request, needs_key=False)
        counts = ("slots", "active", "waiting", "prompts", "tokens", "passes")
        state = {"status": "ok" if self.engine.is_alive else "closed"}
        state |= {name: getattr(self.engine, f"num_{name}") for name in counts}
        return JSONResponse(state, status_code=200 if self.engine.is_alive else 503)

    def _check(self, request: Request, needs_key: bool = True) -> None:
        """Raises a [`RequestError`] for a request of two lengths, or without the API key."""
        if {"content-length", "transfer-encoding"} <= set(request.headers):
            # A proxy may read the other one, and what follows as a further request (RFC 9112, 6.1).
            message = "The request has both Content-Length and Transfer-Encoding."
            raise RequestError(message, headers={"Connection": "close"})
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        is_right = scheme.lower() == "bearer" and secrets.compare_digest(given.encode(), (self.api_key or "").encode())
        if needs_key and self.api_key is not None and not is_right:
            raise RequestError(
                "The API key is missing or wrong. Send the header `Authorization: Bearer KEY`.",
                status=401,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )


def make_app(models: dict[str, ServedModel], engine: Engine, api_key: str | None = None) -> Starlette:
    """Returns the application."""
    api = Api(models, engine, api_key)
    return Starlette(
        routes=[
            Route("/v1/chat/completions", partial(api.complete, ChatBody), methods=["POST"]),
            Route("/v1/completions", partial(api.complete, TextBody), methods=["POST"]),
            Route("/v1/models", api.list_models),
            Route("/health", api.health),
        ],
        exception_handlers=dict.fromkeys((RequestError, HTTPException, ClientDisconnect, Exception), _refuse),
    )


def _as_request_error(error: Exception) -> RequestError:
    """Returns what clients are told of any error."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, HTTPException):
        message = f"{error.detail}. The endpoints are /v1/chat/completions, /v1/completions, /v1/models and /health."
        return RequestError(message, status=error.status_code, headers={"Connection": "close"})
    if isinstance(error, SchemaError):
        return RequestError(str(error))
    reason = f"The request failed with {type(error).__name__}. The server's log has the traceback."
    message = str(error) if isinstance(error, FloatingPointError) else reason
    return RequestError(message, status=499 if isinstance(error, ClientDisconnect) else 500)


async def _refuse(request: Request, error: Exception) -> Response:
    told = _as_request_error(error)
    return JSONResponse(_error_body(told), status_code=told.status, headers=told.headers)


def _error_body(error: RequestError) -> dict[str, Any]:
    """Returns OpenAI's error object."""
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    kind = {401: "authentication_error", 429: "rate_limit_error"}.get(error.status, kind)
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


class Server(uvicorn.Server):
    """Answers requests until a signal arrives or the engine fails; those in flight have `grace_seconds` to finish."""

    def __init__(self, app: Starlette, engine: Engine, grace_seconds: float = 30, **settings: Any):
        # Clients have five more seconds to receive the errors of unfinished answers.
        limit = int(grace_seconds) + 5
        super().__init__(uvicorn.Config(app, http="h11", ws="none", timeout_graceful_shutdown=limit, **settings))
        self.engine = engine
        self.grace_seconds = grace_seconds
        # Otherwise each collection would scan all imported modules, and block the server for a second.
        gc.freeze()

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self.engine.failure is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # The engine ends unfinished answers with an error, so that clients know that they are cut off.
        asyncio.get_running_loop().call_later(self.grace_seconds, self.engine.stop)
        await super().shutdown(sockets)
