# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The bodies of requests, in OpenAI's form and with the settings of decoding, and the prompts in them.

What is not supported is refused, never ignored.
"""

import json
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import pydantic
import torch
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, ValidationError
from pydantic_core import PydanticCustomError, from_json
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_dparallel_rules.settings import SETTINGS, SettingError, suggest

from ..data.prompts import encode_text, render_chat
from ..generation.compatibility import REVISIONS, check, longest_sequence
from ..generation.configuration import DiffusionGenerationConfig, resolve
from ..generation.inputs import check_prompts
from .errors import RequestError, shortened
from .json import CompiledSchema, compile_schema
from .tools import ToolChoice


# A limit of the size of a response: each takes about 60 bytes of JSON.
_MOST_LOGPROBS = 100_000
# The settings of decoding that a request may have.
REQUEST_SETTINGS = [name for name, setting in SETTINGS.items() if setting.has_flag]
# Unsupported fields, with the values at which they do nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "store": (False,),
    "service_tier": ("auto", "default"),
}
# Hints without effect. The settings of decoding say how much work an answer takes.
_HINTS = ("user", "metadata", "safety_identifier", "reasoning_effort", "verbosity", "prompt_cache_key")
# `fail_fast`, because a list may be very long.
_SOME = Field(min_length=1, fail_fast=True)
_FEW = Field(max_length=128, fail_fast=True)
# Each stop string is searched for after every token. OpenAI accepts four.
_StopString = Annotated[str, Field(min_length=1, max_length=256)]


def _text_as(read: Callable[[str], Any]) -> BeforeValidator:
    """Returns a validator that reads a text as the value that is its long form."""
    return BeforeValidator(lambda given: read(given) if isinstance(given, str) else given)


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _TextPart(_Fields):
    """A part of a message. Other fields, such as a request for caching, are hints."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["text"]
    text: str


class _CalledFunction(_Fields):
    model_config = ConfigDict(extra="ignore")

    name: str
    arguments: str


class _ToolCall(_Fields):
    """A function call in an earlier answer, to which clients add fields of their own."""

    model_config = ConfigDict(extra="ignore")

    id: Any = None
    type: Literal["function"] = "function"
    function: _CalledFunction


class _Message(_Fields):
    """A message of a conversation, which may call functions or be the result of a call."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[list[_TextPart], _SOME, _text_as(lambda text: [{"type": "text", "text": text}])]
    tool_calls: list[_ToolCall] = []
    tool_call_id: Any = None
    name: Any = None
    # The form of calls before `tool_calls`.
    function_call: None = None

    @pydantic.model_validator(mode="before")
    @classmethod
    def _without_echo(cls, given: Any) -> Any:
        """Drops what clients add to an earlier answer that they send back whole."""
        if not isinstance(given, dict) or given.get("role") != "assistant":
            return given
        known = {name: value for name, value in given.items() if name in cls.model_fields and value is not None}
        return {"content": ""} | known

    def for_template(self) -> dict[str, Any]:
        """Returns the message for the chat template, with decoded arguments, which the template writes as JSON."""
        # OpenAI's newer name of the role.
        role = "system" if self.role == "developer" else self.role
        message: dict[str, Any] = {"role": role, "content": "".join(part.text for part in self.content)}
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        for call in message.get("tool_calls", ()):
            with suppress(ValueError):
                call["function"]["arguments"] = from_json(call["function"]["arguments"])
        return message


class _FunctionName(_Fields):
    name: Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")]


class _Function(_FunctionName):
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Tool(_Fields):
    type: Literal["function"]
    function: _Function


class _ToolChoice(_Fields):
    type: Literal["none", "auto", "required", "function"]
    function: _FunctionName | None = None


class _Schema(_Fields):
    name: Any = None
    description: Any = None
    strict: Any = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class _ResponseFormat(_Fields):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _Schema | None = None


class _StreamOptions(_Fields):
    """Options of a stream. `include_drafts` is not OpenAI's: it adds the partial answer after each pass."""

    include_usage: bool = False
    include_drafts: bool = False


class Body(_Fields):
    """The fields that chats and texts have in common. Each prompt gets `n` answers."""

    # The name of the field with the prompt.
    prompt_field: ClassVar[str] = "messages"

    model: str | None = None
    stream: bool = False
    stream_options: Annotated[_StreamOptions, BeforeValidator(lambda options: options or {})] = _StreamOptions()
    seed: Annotated[int, Field(gt=-(2**62), lt=2**62)] | None = None
    n: PositiveInt = 1
    # An empty string stops nothing.
    stop: Annotated[
        list[_StopString], Field(max_length=16, fail_fast=True), _text_as(lambda text: [text] if text else [])
    ] = []
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None


class ChatBody(Body):
    """The body of `/v1/chat/completions`."""

    messages: Annotated[list[_Message], _SOME]
    tools: Annotated[list[_Tool], _FEW] = []
    tool_choice: Annotated[_ToolChoice, _text_as(lambda kind: {"type": kind})] = _ToolChoice(type="auto")
    response_format: _ResponseFormat | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    # Arguments of the chat template, as in vLLM and SGLang.
    chat_template_kwargs: dict[str, Any] = {}


def _prompts(prompts: Any) -> Any:
    is_one = isinstance(prompts, str) or (isinstance(prompts, list) and prompts and type(prompts[0]) is int)
    return [prompts] if is_one else prompts


def _prompt(prompt: Any) -> Any:
    is_ids = isinstance(prompt, list) and bool(prompt) and all(type(token_id) is int for token_id in prompt)
    if not is_ids and not isinstance(prompt, str):
        raise PydanticCustomError("prompt", "Input should be a text, a list of token ids, or a list of either")
    return prompt


class TextBody(Body):
    """The body of `/v1/completions`."""

    prompt_field = "prompt"
    # Fields of chats, with the values at which they do nothing.
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        "response_format": ({"type": "text"},),
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "logprobs": (False,),
        "top_logprobs": (0,),
    }

    prompt: Annotated[list[Annotated[Any, AfterValidator(_prompt)]], _SOME, BeforeValidator(_prompts)]


@dataclass
class ServedModel:
    """A model in the API: the base model, or the base model with one adapter."""

    # The `model` of requests.
    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    # Overrides the model's recipe, and is overridden by requests. It is resolved if several adapters are served,
    # because the recipe of another adapter may be active when a request comes.
    generation_config: DiffusionGenerationConfig
    # The adapter's name in PEFT, and the name of the base model in the API.
    adapter: str | None = None
    parent: str | None = None


@dataclass
class CompletionRequest:
    """A valid request: its prompts, each `(prompt_length,)`, and the settings of all of them."""

    body: ChatBody | TextBody
    prompts: list[torch.LongTensor]
    config: DiffusionGenerationConfig
    max_tokens: int
    seed: int
    stop: list[str]
    # By default without log-probabilities.
    num_logprobs: int | None = None
    schema: CompiledSchema | None = None
    tools: ToolChoice | None = None
    template_arguments: dict[str, Any] = field(default_factory=dict)


def read_request(
    kind: type[ChatBody | TextBody], given: dict[str, Any], served: ServedModel, max_prompts: int
) -> CompletionRequest:
    """Returns the request of a JSON object, or raises a [`RequestError`].

    `max_prompts` limits the answers, because the engine accepts all prompts of a request or none.
    """
    body = _read_body(kind, given)
    settings = {name: given[name] for name in REQUEST_SETTINGS if given.get(name) is not None}
    prompts: list[Any] = [body.messages] if isinstance(body, ChatBody) else body.prompt
    if len(prompts) * body.n > max_prompts:
        field, number = "n" if body.n > 1 else kind.prompt_field, shortened(len(prompts) * body.n)
        raise RequestError(f"`{field}` asks for {number} answers. Ask for at most {max_prompts}.", field)
    config, max_tokens = _read_settings(body, settings, served)
    if body.n > 1 and not config.temperature:
        raise RequestError(f"`n={body.n}` would give equal answers at temperature 0. Set `temperature`.", "n")
    seed = secrets.randbits(62) if body.seed is None else body.seed
    request = CompletionRequest(body, [], config, max_tokens, seed, body.stop or config.stop_strings)
    if isinstance(body, ChatBody):
        _read_chat_options(body, request, served)
    request.prompts = [_read_prompt(prompt, request, served) for prompt in prompts]
    return request


def choose_model(name: Any, models: Mapping[str, ServedModel]) -> ServedModel:
    """Returns the model of this name, or the first model for `None`. Raises a [`RequestError`] for unknown names."""
    if name is None:
        return next(iter(models.values()))
    if not isinstance(name, str) or name not in models:
        served = ", ".join(f"`{known}`" for known in models)
        message = f"The model `{shortened(name)}` does not exist. This server has {served}."
        raise RequestError(message, "model", 404, "model_not_found")
    return models[name]


def _read_body(kind: type[ChatBody | TextBody], given: dict[str, Any]) -> ChatBody | TextBody:
    """Returns the fields of a request without its settings of decoding. A field that is `None` counts as not set."""
    neutral = _NEUTRAL | getattr(kind, "neutral", {})
    left_out = {*REQUEST_SETTINGS, *neutral, *_HINTS}
    for name in given.keys() & neutral.keys():
        value = given[name]
        # In Python 0 == False, but `logprobs=0` requests log-probabilities and `logprobs=False` does not.
        is_neutral = any(value == each and isinstance(value, bool) is isinstance(each, bool) for each in neutral[name])
        if value is not None and not is_neutral:
            raise RequestError(f"`{name}={shortened(value)}` is not supported. Leave it out.", name)
    fields = {name: value for name, value in given.items() if name not in left_out}
    unknown = next((name for name in fields if name not in kind.model_fields), None)
    if unknown is not None:
        names = (*kind.model_fields, *REQUEST_SETTINGS)
        hint = suggest(shortened(unknown), names) or f"Fields: {', '.join(names)}."
        raise RequestError(f"Unknown field `{shortened(unknown)}`. {hint}", shortened(unknown))
    try:
        return kind.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as invalid:
        error = invalid.errors(include_url=False, include_context=False)[0]
    place = (f"[{name}]" if isinstance(name, int) else f".{name}" for name in error["loc"])
    field, value = shortened("".join(place).removeprefix(".")), shortened(error["input"])
    if error["type"] == "extra_forbidden":
        raise RequestError(f"`{field}={value}` is not supported. Leave it out.", field)
    if error["type"] == "missing":
        raise RequestError(f"`{field}` is missing.", field)
    rule = "Input should be an object" if error["type"] in ("model_type", "dict_type") else error["msg"]
    raise RequestError(f"`{field}`: {rule}, got {value}.", field)


def _read_settings(body: Body, asked: dict[str, Any], served: ServedModel) -> tuple[DiffusionGenerationConfig, int]:
    """Returns the generation settings and the largest number of tokens of the answer.

    `max_tokens` does not shorten the canvas, so a shorter answer is the beginning of a longer one, and requests with
    different `max_tokens` share passes. Above `max_new_tokens` it extends the canvas by whole blocks.
    """
    try:
        given, length = served.generation_config, SETTINGS["max_new_tokens"].read(asked.get("max_new_tokens"))
        if length and given.max_new_tokens:
            given = _of_length(given, length)
        config = resolve(served.model, given, served.tokenizer, **asked)
        if config.is_infilling:
            raise RequestError("`max_new_tokens` must be a positive integer, got 0.", "max_new_tokens")
        max_tokens = body.max_completion_tokens or body.max_tokens or config.max_new_tokens
        if max_tokens > config.max_new_tokens and length is None:
            num_blocks = -(-max_tokens // config.block_length)
            config = _of_length(config, num_blocks * config.block_length)
        check(config, served.model)
    except ValueError as error:
        setting = error.setting if isinstance(error, SettingError) else None
        raise RequestError(str(error), setting if setting in asked else None) from error
    return config, min(max_tokens, config.max_new_tokens)


def _of_length(config: DiffusionGenerationConfig, max_new_tokens: int) -> DiffusionGenerationConfig:
    """Returns the configuration with another length, and with a schedule scaled to as many passes per token."""
    steps = config.denoising_steps
    scaled = None if steps is None else -(-steps * max_new_tokens // config.max_new_tokens)
    return config.updated(max_new_tokens=max_new_tokens, denoising_steps=scaled)


def _read_chat_options(body: ChatBody, request: CompletionRequest, served: ServedModel) -> None:
    """Reads log-probabilities, tools and the form of the answer."""
    if served.tokenizer.chat_template is None:
        raise RequestError("The tokenizer of this model has no chat template. Use /v1/completions.", "messages")
    if body.top_logprobs and not body.logprobs:
        raise RequestError(f"`top_logprobs={body.top_logprobs}` needs `logprobs`. Set that to true.", "top_logprobs")
    if body.logprobs:
        request.num_logprobs = body.top_logprobs
        if body.n * request.max_tokens * (1 + body.top_logprobs) > _MOST_LOGPROBS:
            answers = f"`n={body.n}` answers of {request.max_tokens} tokens with `top_logprobs={body.top_logprobs}`"
            message = f"{answers} have more than {_MOST_LOGPROBS} log-probabilities. Ask for fewer."
            raise RequestError(message, "top_logprobs")
    tools, choice = [tool.model_dump(exclude_none=True) for tool in body.tools], body.tool_choice
    if choice.function is not None:
        tools = [tool for tool in tools if tool["function"]["name"] == choice.function.name]
    must = choice.type in ("required", "function")
    if must and (not tools or (choice.type == "function") is (choice.function is None)):
        raise RequestError("`tool_choice` must name one of the `tools`.", "tool_choice")
    request.template_arguments = dict(body.chat_template_kwargs)
    if tools and choice.type != "none":
        request.tools = ToolChoice(tools, must)
        # An answer that must call follows a schema, whether the template shows the tools or not.
        if not must or re.search(r"\btools\b", served.tokenizer.get_chat_template(tools=tools)):
            request.template_arguments["tools"] = tools
    field, schema, calls = "response_format", _schema_of(body), None
    if must and request.tools is not None:
        field, schema = "tools", request.tools.schema()
    elif request.tools is not None:
        calls = request.tools.schema_of_call()
    if schema is not None:
        request.schema = _compile(schema, calls, request.config, served, field)


def _schema_of(body: ChatBody) -> dict[str, Any] | None:
    """Returns the schema of `response_format`, or `None` for text."""
    form = body.response_format
    if form is None:
        return None
    schema = form.json_schema.schema_ if form.json_schema is not None else None
    if (form.type == "json_schema") is (schema is None):
        message = "`response_format` must have the type json_schema and a schema, or neither."
        raise RequestError(message, "response_format")
    return {"type": "object"} if form.type == "json_object" else schema


def _compile(
    schema: dict[str, Any],
    calls: dict[str, Any] | None,
    config: DiffusionGenerationConfig,
    served: ServedModel,
    field: str,
) -> CompiledSchema:
    if not config.stop_at_eos or not config.eos_token_ids:
        raise RequestError(f"`{field}` needs an end-of-sequence token, and `stop_at_eos=true`.", field)
    for name in filter(config.is_on, REVISIONS):
        off = SETTINGS[name].default
        remedy = f"Leave out `{name}`." if off is None else f"Send `{name}={off}`."
        raise RequestError(f"`{field}` needs settings that revise no tokens. {remedy}", field)
    try:
        vocab_size = served.model.config.vocab_size
        return compile_schema(schema, served.tokenizer, vocab_size, config.eos_token_ids, calls)
    except ValueError as error:
        raise RequestError(f"`{field}` cannot be answered: {error}", field) from error


def _read_prompt(prompt: Any, request: CompletionRequest, served: ServedModel) -> torch.LongTensor:
    """Returns the token ids of a text, a conversation, or a list of ids, after checking that they can be decoded."""
    field, config = request.body.prompt_field, request.config
    ids = _encode(prompt, request, served.tokenizer)
    if not ids:
        raise RequestError(f"`{field}` is empty. Give it at least one token.", field)
    longest = longest_sequence(served.model)
    if longest is not None and len(ids) + config.max_new_tokens > longest:
        # OpenAI's words, by which clients recognize this error.
        asked = request.body.max_completion_tokens or request.body.max_tokens
        raise RequestError(
            f"This model's maximum context length is {longest} tokens. `{field}` has {len(ids)} and the answer may "
            f"have {config.max_new_tokens}. Shorten the conversation, or lower `max_tokens` and `max_new_tokens`.",
            "max_tokens" if asked else field,
            code="context_length_exceeded",
        )
    try:
        return check_prompts(torch.tensor([ids]), None, config, served.model)[0][0].to(served.model.device)
    except (ValueError, OverflowError, RuntimeError) as error:
        raise RequestError(f"`{field}` cannot be decoded: {error}", field) from error


def _encode(prompt: Any, request: CompletionRequest, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    if isinstance(prompt, str):
        return encode_text(tokenizer, prompt)
    if isinstance(prompt[0], int):
        return prompt
    messages = [message.for_template() for message in prompt]
    try:
        return encode_chat(messages, tokenizer, **request.template_arguments)
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError) as error:
        # A template is a program, which may fail in any way.
        raise RequestError(str(error), "messages") from error


def encode_chat(
    messages: list[dict[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    tools: list[dict[str, Any]] | None = None,
    **chat_template_kwargs: Any,
) -> list[int]:
    """Applies the chat template, and tokenizes special tokens that a message spells out as plain text.

    A rare character that no message has cuts each of them into two, which are tokenized apart.
    """
    given = json.dumps([messages, tools, chat_template_kwargs], ensure_ascii=False)
    cut = next(char for char in map(chr, range(0x20000, 0x2A6E0)) if char not in given)
    special = "|".join(re.escape(token.content) for token in tokenizer.added_tokens_decoder.values() if token.special)
    # The place to cut is after the first character of each.
    first = re.compile(f"(?=(?:{special}))(.)" if special else "(?!)", re.DOTALL)

    def as_text(given: Any) -> Any:
        if isinstance(given, dict):
            return {as_text(name): as_text(value) for name, value in given.items()}
        if isinstance(given, list):
            return list(map(as_text, given))
        return first.sub(rf"\g<0>{cut}", given) if isinstance(given, str) else given

    messages = [{name: as_text(value) for name, value in message.items()} for message in messages]
    text = render_chat(tokenizer, messages, tools=as_text(tools), **chat_template_kwargs)
    parts = tokenizer(text.split(cut), add_special_tokens=False)["input_ids"]
    return [token_id for part in parts for token_id in part]
