# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The fields of requests. Generation settings, which a request may also have, are declared in `SETTINGS`."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import pydantic
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, ValidationError
from pydantic_core import PydanticCustomError, from_json

from hf_dparallel_rules.settings import SETTINGS, suggest


@dataclass(eq=False)
class RequestError(Exception):
    """The error of a refused request, with the fields of OpenAI's error object. `param` names the field."""

    message: str
    param: str | None = None
    status: int = 400
    code: str | None = None
    headers: dict[str, str] | None = None

    def __str__(self) -> str:
        return self.message


def _only(*neutral: Any) -> AfterValidator:
    """Returns a validator for an unsupported field, which accepts only the `neutral` values that clients may send."""

    def check(value: Any) -> Any:
        # In Python 0 == False, but `logprobs=0` requests log-probabilities and `logprobs=False` does not.
        if not any(value == each and isinstance(value, bool) is isinstance(each, bool) for each in neutral):
            raise PydanticCustomError("unsupported", "Input is not supported")
        return value

    return AfterValidator(check)


def _text_as(read: Callable[[str], Any]) -> BeforeValidator:
    """Returns a validator that reads a text as the value that is its long form."""
    return BeforeValidator(lambda given: read(given) if isinstance(given, str) else given)


def _prompts(prompts: Any) -> Any:
    is_one = isinstance(prompts, str) or (isinstance(prompts, list) and prompts and type(prompts[0]) is int)
    return [prompts] if is_one else prompts


def _prompt(prompt: Any) -> Any:
    is_ids = isinstance(prompt, list) and bool(prompt) and all(type(token_id) is int for token_id in prompt)
    if not is_ids and not isinstance(prompt, str):
        raise PydanticCustomError("prompt", "Input should be a text, a list of token ids, or a list of either")
    return prompt


# `fail_fast`, because a list may be very long.
_SOME = Field(min_length=1, fail_fast=True)
_FEW = Field(max_length=128, fail_fast=True)
# Each stop string is searched for after every token. OpenAI accepts four.
_StopString = Annotated[str, Field(min_length=1, max_length=256)]
_NumTop = Annotated[int, Field(ge=0, le=20)]


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    skips_empty: ClassVar[bool] = False

    @pydantic.model_validator(mode="before")
    @classmethod
    def _with_one_unknown(cls, given: Any) -> Any:
        """Drops all unknown fields but one: pydantic would take seconds to report very many."""
        if not isinstance(given, dict):
            return given
        known = {field.alias or name for name, field in cls.model_fields.items()}
        unknown = [name for name in given if name not in known and (given[name] or not cls.skips_empty)]
        return {name: given[name] for name in (*known.intersection(given), *unknown[:1])}


class _TextPart(_Fields):
    """A part of a message. Other fields, such as the annotations of an earlier answer, are ignored."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["text"]
    text: str


class _CalledFunction(_Fields):
    name: str
    arguments: str


class _ToolCall(_Fields):
    """A function call in an earlier answer. Other fields are ignored."""

    model_config = ConfigDict(extra="ignore")

    id: Any = None
    type: Literal["function"] = "function"
    function: _CalledFunction


class _Message(_Fields):
    """A message of a conversation, which may call functions or be the result of a call."""

    # Clients send an earlier answer back with all fields, most of them empty.
    skips_empty = True
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[list[_TextPart], _SOME, _text_as(lambda text: [{"type": "text", "text": text}])]
    tool_calls: Annotated[list[_ToolCall], BeforeValidator(lambda calls: calls or [])] = []
    tool_call_id: Any = None
    name: Any = None
    refusal: Any = None

    @pydantic.model_validator(mode="before")
    @classmethod
    def _with_text(cls, given: Any) -> Any:
        """Adds an empty text to calls without content."""
        has_none = isinstance(given, dict) and given.get("tool_calls") and given.get("content") is None
        return given | {"content": ""} if has_none else given

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


_Choice = Annotated[_ToolChoice, _text_as(lambda kind: {"type": kind})]
_AUTO = _ToolChoice(type="auto")


class _Schema(_Fields):
    name: Any = None
    description: Any = None
    strict: Any = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class _ResponseFormat(_Fields):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _Schema | None = None


class _NoSchema(_ResponseFormat):
    type: Literal["text"]


class _StreamOptions(_Fields):
    """Options of a stream. `include_drafts` is not OpenAI's: it adds the partial answer after each pass."""

    include_usage: bool = False
    include_drafts: bool = False


class _WithoutEffect(_Fields):
    """Fields without effect: unsupported ones, which accept neutral values only, and hints, which accept any."""

    best_of: Annotated[Any, _only(1)] = None
    echo: Annotated[Any, _only(False)] = None
    suffix: Annotated[Any, _only("")] = None
    presence_penalty: Annotated[Any, _only(0)] = None
    frequency_penalty: Annotated[Any, _only(0)] = None
    logit_bias: Annotated[Any, _only({})] = None
    parallel_tool_calls: Annotated[Any, _only(True, False)] = None
    functions: Annotated[Any, _only([])] = None
    function_call: Annotated[Any, _only("none", "auto")] = None
    modalities: Annotated[Any, _only(["text"])] = None
    store: Annotated[Any, _only(False)] = None
    service_tier: Annotated[Any, _only("auto", "default")] = None
    user: Any = None
    metadata: Any = None
    safety_identifier: Any = None
    # The generation settings decide how much work an answer takes.
    reasoning_effort: Any = None
    verbosity: Any = None
    prompt_cache_key: Any = None


class Body(_WithoutEffect):
    """The fields that chats and texts have in common. Each prompt gets `n` answers."""

    # The name of the field with the prompt.
    prompt_field: ClassVar[str] = "messages"

    model: str | None = None
    stream: bool = False
    seed: Annotated[int, Field(gt=-(2**62), lt=2**62)] | None = None
    n: PositiveInt = 1
    # An empty string stops nothing.
    stop: Annotated[
        list[_StopString], Field(max_length=16, fail_fast=True), _text_as(lambda text: [text] if text else [])
    ] = []
    stream_options: Annotated[_StreamOptions, BeforeValidator(lambda options: options or {})] = _StreamOptions()
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None


class ChatBody(Body):
    """The body of `/v1/chat/completions`."""

    messages: Annotated[list[_Message], _SOME]
    tools: Annotated[list[_Tool], _FEW] = []
    tool_choice: _Choice = _AUTO
    response_format: _ResponseFormat | None = None
    logprobs: bool = False
    top_logprobs: _NumTop = 0


class TextBody(Body):
    """The body of `/v1/completions`."""

    prompt_field = "prompt"

    prompt: Annotated[list[Annotated[Any, AfterValidator(_prompt)]], _SOME, BeforeValidator(_prompts)]
    response_format: _NoSchema | None = None
    tools: Annotated[Any, _only([])] = None
    tool_choice: Annotated[Any, _only("none", "auto")] = None
    logprobs: Annotated[Any, _only(False)] = None
    top_logprobs: Annotated[Any, _only(0)] = None


def read_body(kind: type[Body], given: dict[str, Any]) -> tuple[ChatBody | TextBody, dict[str, Any]]:
    """Returns the fields of a request and its generation settings. A field that is `None` counts as not set.

    Raises a [`RequestError`] for an invalid field.
    """
    requestable, known = requestable_settings(), kind.model_fields
    settings = {name: given[name] for name in requestable if given.get(name) is not None}
    fields = {name: value for name, value in given.items() if value is not None or name not in known}
    for name in requestable:
        fields.pop(name, None)
    try:
        body: Any = kind.model_validate(fields)
    except ValidationError as error:
        raise _refusal(error, kind) from None
    return body, settings


def requestable_settings() -> list[str]:
    """Returns the names of the generation settings that a request may have."""
    return [name for name, setting in SETTINGS.items() if setting.has_flag]


def shortened(value: Any) -> str:
    """Returns a value as text for a message, cut to 80 characters."""
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _refusal(invalid: ValidationError, kind: type[Body]) -> RequestError:
    error = invalid.errors(include_url=False, include_context=False)[0]
    place = (f"[{name}]" if isinstance(name, int) else f".{name}" for name in error["loc"])
    field = shortened("".join(place).removeprefix("."))
    value = shortened(error["input"])
    if error["type"] == "extra_forbidden" and len(error["loc"]) == 1:
        known = (*kind.model_fields, *requestable_settings())
        names = [name for name in known if name not in _WithoutEffect.model_fields]
        hint = suggest(field, names) or f"Fields: {', '.join(names)}."
        return RequestError(f"Unknown field `{field}`. {hint}", field)
    if error["type"] in ("extra_forbidden", "unsupported"):
        return RequestError(f"`{field}={value}` is not supported. Leave it out.", field)
    if error["type"] == "missing":
        return RequestError(f"`{field}` is missing.", field)
    rule = "Input should be an object" if error["type"] in ("model_type", "dict_type") else error["msg"]
    return RequestError(f"`{field}`: {rule}, got {value}.", field)
