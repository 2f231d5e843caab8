# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""From the JSON of a request to prompts and settings. What cannot be done is refused, never ignored."""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jinja2
import regex
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..generation.compatibility import check_supported
from ..generation.configuration import DiffusionGenerationConfig, resolve
from ..generation.inputs import check_prompts, longest_sequence
from ..generation.settings import SETTINGS
from .json_answers import read_schema


# `user` and `metadata` are for whoever reads the requests; they change nothing. Beside these a request may have
# settings of decoding.
_FIELDS = (
    "model",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "stop",
    "stream",
    "stream_options",
    "seed",
    "user",
    "metadata",
)
# Fields of a chat only.
_CHAT_FIELDS = ("messages", "response_format", "logprobs", "top_logprobs")
# OpenAI's limit.
_MAX_TOP_LOGPROBS = 20
# Fields of OpenAI's that are not supported, with the values at which they do nothing; clients send those unasked.
_NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "store": (False,),
    "service_tier": ("auto", "default"),
}
# `include_drafts` is not OpenAI's: what stands of the answer after each pass.
_STREAM_OPTIONS = ("include_usage", "include_drafts")
# OpenAI takes four. Every text costs work with each token of the answer.
_MAX_STOP_STRINGS, _MAX_STOP_LENGTH = 16, 256
# What the chat template calls each role; OpenAI's newer name of the system is the developer.
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


class RequestError(Exception):
    """A request that is refused, in the terms of OpenAI's error object.

    Args:
        message (`str`): what is wrong and what to do.
        param (`str`, *optional*): the field that is wrong.
        status (`int`): HTTP status.
        code (`str`, *optional*): a name of the error for programs.
        headers (`dict[str, str]`, *optional*): headers of the response.
    """

    def __init__(
        self,
        message: str,
        param: str | None = None,
        status: int = 400,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ):
        super().__init__(message)
        self.param = param
        self.status = status
        self.code = code
        self.headers = headers


@dataclass
class ServedModel:
    """A model that answers: the weights with one of their adapters, or without.

    Args:
        name (`str`): what clients call it.
        model ([`~transformers.PreTrainedModel`]): with [`~DiffusionGenerationMixin.generate`].
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): its tokenizer.
        generation_config ([`DiffusionGenerationConfig`]): settings that take precedence over the model's recipe, and
            over which requests take precedence. Where several adapters are served it is resolved, because the recipe
            of another adapter may be active when a request comes.
        adapter (`str`, *optional*): PEFT's name of the adapter.
        parent (`str`, *optional*): with an adapter, the name of the model without it.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    generation_config: DiffusionGenerationConfig
    adapter: str | None = None
    parent: str | None = None


@dataclass
class CompletionRequest:
    """A request that can be answered: its prompts, each `(prompt_length,)`, and what all of them share.

    Each prompt is answered `n` times. With `num_logprobs`, the log-probabilities of its tokens are told, and beside
    each those of so many of the likeliest ones. A `form` is what a JSON schema gives, see [`read_schema`].
    """

    prompts: list[torch.LongTensor]
    n: int
    config: DiffusionGenerationConfig
    max_tokens: int
    seed: int
    stop: list[str]
    stream: bool
    include_usage: bool
    include_drafts: bool
    num_logprobs: int | None = None
    form: "list[str | regex.Pattern] | None" = None


def read_chat_request(body: dict[str, Any], served: ServedModel, max_prompts: int) -> CompletionRequest:
    """Reads the body of `/v1/chat/completions`. All prompts of a request are taken together, at most `max_prompts`.

    Raises:
        RequestError: if it cannot be answered as it is meant.
    """
    _check_fields(body, _CHAT_FIELDS)
    if served.tokenizer.chat_template is None:
        raise RequestError("This model has no chat template. Use /v1/completions.", "messages")
    messages = _read_messages(body.get("messages"))
    request = _read_request(body, served)
    request.num_logprobs = _read_logprobs(body)
    request.form = _read_form(body, served, request.config)
    try:
        ids = _encode_chat(messages, served.tokenizer)
    except jinja2.TemplateError as error:
        raise RequestError(f"The chat template of the model refuses the messages: {error}", "messages") from error
    _check_number(request.n, max_prompts, "n")
    request.prompts = [_check_prompt(ids, request.config, served, "messages")]
    return request


def read_text_request(body: dict[str, Any], served: ServedModel, max_prompts: int) -> CompletionRequest:
    """Reads the body of `/v1/completions`, as [`read_chat_request`].

    Raises:
        RequestError: if it cannot be answered as it is meant.
    """
    _check_fields(body, ("prompt",))
    prompt = body.get("prompt")
    prompts = [prompt] if isinstance(prompt, str) or _is_token_ids(prompt) else prompt
    if (
        not isinstance(prompts, list)
        or not prompts
        or not all(isinstance(p, str) or _is_token_ids(p) for p in prompts)
    ):
        raise RequestError(
            "`prompt` must be a text, a list of token ids, or a list of either, and not empty.", "prompt"
        )
    _check_number(len(prompts), max_prompts, "prompt")
    request = _read_request(body, served)
    _check_number(len(prompts) * request.n, max_prompts, "n")
    ids = [served.tokenizer(p)["input_ids"] if isinstance(p, str) else p for p in prompts]
    request.prompts = [_check_prompt(prompt_ids, request.config, served, "prompt") for prompt_ids in ids]
    return request


def choose_model(name: Any, models: Mapping[str, ServedModel]) -> ServedModel:
    """Returns the model of a name; without a name, the first one.

    Raises:
        RequestError: if there is none.
    """
    if name is None:
        return next(iter(models.values()))
    _check_type({"model": name}, "model", str, "the name of the model")
    if name not in models:
        served = ", ".join(f"`{known}`" for known in models)
        message = f"The model `{_shortened(name)}` does not exist. This server has {served}."
        raise RequestError(message, "model", 404, "model_not_found")
    return models[name]


def _check_fields(body: dict[str, Any], own: tuple[str, ...]) -> None:
    known = (*own, *_FIELDS, *_requestable_settings())
    for name, value in body.items():
        if name in known:
            continue
        if name in _NEUTRAL_VALUES:
            if value is not None and not _is_neutral(name, value):
                raise RequestError(f"`{name}={_shortened(value)}` is not supported. Leave it out.", name)
        else:
            raise RequestError(f"Unknown field `{_shortened(name)}`. Fields: {', '.join(known)}.", name)


def _check_number(answers: int, max_prompts: int, field: str) -> None:
    if answers > max_prompts:
        raise RequestError(f"`{field}` asks for {_shortened(answers)} answers. Ask for at most {max_prompts}.", field)


def _read_messages(messages: Any) -> list[dict[str, str]]:
    if not isinstance(messages, list) or not messages:
        raise RequestError("`messages` must be a list with at least one message.", "messages")
    read = []
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        if not isinstance(message, dict) or message.get("role") not in list(_ROLES):
            raise RequestError(f"`{place}` must be an object whose `role` is one of {', '.join(_ROLES)}.", place)
        known = {"role", "content", "name", "refusal"}
        unknown = sorted(name for name, value in message.items() if value and name not in known)
        if unknown:
            raise RequestError(f"`{place}.{_shortened(unknown[0])}` is not supported. Leave it out.", place)
        read.append({"role": _ROLES[message["role"]], "content": _read_content(message.get("content"), place)})
    return read


def _read_content(content: Any, place: str) -> str:
    if isinstance(content, str):
        return content
    parts: list[Any] = content if isinstance(content, list) and content else [None]
    if not all(isinstance(p, dict) and p.get("type") == "text" and isinstance(p.get("text"), str) for p in parts):
        raise RequestError(
            f'`{place}.content` must be a text or a list of {{"type": "text", "text": ...}}; other content is not '
            "supported.",
            place,
        )
    return "".join(part["text"] for part in parts)


def _encode_chat(messages: list[dict[str, str]], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Applies the chat template. A message has no control tokens: a special token that is written in one is text.

    It becomes text by being tokenized in two parts, before which the template is applied to the whole.
    """
    cut = secrets.token_hex(16)
    special = "|".join(re.escape(token.content) for token in tokenizer.added_tokens_decoder.values() if token.special)
    if special:
        # After the first character of each.
        first = re.compile(f"(?=(?:{special}))(.)", re.DOTALL)
        messages = [message | {"content": first.sub(rf"\g<1>{cut}", message["content"])} for message in messages]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    parts = tokenizer(text.split(cut), add_special_tokens=False)["input_ids"]
    return [token_id for part in parts for token_id in part]


def _read_request(body: dict[str, Any], served: ServedModel) -> CompletionRequest:
    """Reads all but the prompts, which take longer."""
    config, max_tokens = _read_settings(body, served)
    stop = body.get("stop") or config.stop_strings or []
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(text, str) and text for text in stop):
        raise RequestError("`stop` must be a text or a list of texts that are not empty.", "stop")
    if len(stop) > _MAX_STOP_STRINGS or any(len(text) > _MAX_STOP_LENGTH for text in stop):
        raise RequestError(
            f"`stop` must be at most {_MAX_STOP_STRINGS} texts of at most {_MAX_STOP_LENGTH} characters, got "
            f"{len(stop)}, the longest with {max(map(len, stop))}.",
            "stop",
        )
    _check_type(body, "n", int, "a positive integer")
    n = 1 if body.get("n") is None else body["n"]
    if n < 1:
        raise RequestError(f"`n` must be a positive integer, got {_shortened(n)}.", "n")
    if n > 1 and not config.temperature:
        raise RequestError(f"`n={_shortened(n)}` would give equal answers at temperature 0. Set `temperature`.", "n")
    _check_type(body, "stream", bool, "true or false")
    _check_type(body, "seed", int, "an integer")
    seed = secrets.randbits(62) if body.get("seed") is None else body["seed"]
    if not -(2**62) < seed < 2**62:
        raise RequestError(f"`seed` must be an integer of at most 62 bits, got {_shortened(seed)}.", "seed")
    options = body.get("stream_options") or {}
    if not isinstance(options, dict) or set(options) - set(_STREAM_OPTIONS):
        names = " and ".join(f"`{name}`" for name in _STREAM_OPTIONS)
        raise RequestError(f"`stream_options` must be an object that has {names} only.", "stream_options")
    for name in _STREAM_OPTIONS:
        _check_type(options, name, bool, "true or false")
    return CompletionRequest(
        prompts=[],
        n=n,
        config=config,
        max_tokens=max_tokens,
        seed=seed,
        stop=stop,
        stream=bool(body.get("stream")),
        include_usage=bool(options.get("include_usage")),
        include_drafts=bool(body.get("stream") and options.get("include_drafts")),
    )


def _read_logprobs(body: dict[str, Any]) -> int | None:
    """How many of the likeliest tokens to tell of beside each token; `None` to tell of none."""
    _check_type(body, "logprobs", bool, "true or false")
    _check_type(body, "top_logprobs", int, f"an integer from 0 to {_MAX_TOP_LOGPROBS}")
    num_top = body.get("top_logprobs") or 0
    if not 0 <= num_top <= _MAX_TOP_LOGPROBS:
        raise RequestError(
            f"`top_logprobs` must be an integer from 0 to {_MAX_TOP_LOGPROBS}, got {_shortened(num_top)}.",
            "top_logprobs",
        )
    if num_top and not body.get("logprobs"):
        raise RequestError(f"`top_logprobs={num_top}` needs `logprobs`. Set that to true.", "top_logprobs")
    return num_top if body.get("logprobs") else None


def _read_form(
    body: dict[str, Any], served: ServedModel, config: DiffusionGenerationConfig
) -> "list[str | regex.Pattern] | None":
    form = body.get("response_format")
    if form is None or form == {"type": "text"}:
        return None
    asked = form.get("json_schema") if isinstance(form, dict) and form.get("type") == "json_schema" else None
    if not isinstance(asked, dict) or set(asked) - {"name", "description", "strict", "schema"}:
        raise RequestError(
            '`response_format` must be {"type": "text"} or {"type": "json_schema", "json_schema": {"name": ..., '
            '"schema": ...}}. Other JSON has no keys that could be given: ask for it in a message.',
            "response_format",
        )
    if config.revises or not config.stop_at_eos or not config.eos_token_ids:
        raise RequestError(
            "`response_format` needs tokens that stay as they are, and an end-of-sequence token that ends the answer. "
            "Leave out settings that revise tokens, and `stop_at_eos`.",
            "response_format",
        )
    try:
        return read_schema(asked.get("schema"), served.tokenizer)
    except ValueError as error:
        raise RequestError(f"`response_format` cannot be answered: {error}", "response_format") from error


def _read_settings(body: dict[str, Any], served: ServedModel) -> tuple[DiffusionGenerationConfig, int]:
    """The settings of the canvas, and after how many tokens the answer ends.

    `max_tokens` leaves the canvas as it is, so that a shorter answer is the beginning of a longer one, and requests
    that differ in it share passes. Only above the length of the canvas it makes that longer, by whole blocks.
    """
    limits = [name for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None]
    for name in limits:
        if isinstance(body[name], bool) or not isinstance(body[name], int) or body[name] < 1:
            raise RequestError(f"`{name}` must be a positive integer, got {_shortened(body[name])}.", name)
    settings = {name: body[name] for name in _requestable_settings() if body.get(name) is not None}
    if settings.get("max_new_tokens") == 0:
        raise RequestError("`max_new_tokens` must be a positive integer, got 0.", "max_new_tokens")
    try:
        given, length = served.generation_config, SETTINGS["max_new_tokens"].read(settings.get("max_new_tokens"))
        if length and given.max_new_tokens and given.denoising_steps:
            given = _of_length(given, length)
        config = resolve(served.model, given, served.tokenizer, **settings)
        # Of a recipe. It counts from the beginning of a call of `generate`, and passes here belong to many requests.
        config = config.updated(max_time=None)
        max_tokens = body[limits[0]] if limits else config.max_new_tokens
        if max_tokens > config.max_new_tokens and "max_new_tokens" not in settings:
            num_blocks = -(-max_tokens // config.block_length)
            config = _of_length(config, num_blocks * config.block_length)
        check_supported(served.model, config)
    except ValueError as error:
        raise RequestError(str(error), next((name for name in settings if f"`{name}" in str(error)), None)) from error
    return config, min(max_tokens, config.max_new_tokens)


def _requestable_settings() -> list[str]:
    return [name for name, setting in SETTINGS.items() if setting.is_request]


def _of_length(config: DiffusionGenerationConfig, max_new_tokens: int) -> DiffusionGenerationConfig:
    """The same with another length, and as many passes per token."""
    lengths = {"max_new_tokens": max_new_tokens}
    if config.denoising_steps is not None:
        lengths["denoising_steps"] = -(-config.denoising_steps * max_new_tokens // config.max_new_tokens)
    return config.updated(**lengths)


def _check_prompt(
    ids: list[int], config: DiffusionGenerationConfig, served: ServedModel, prompt_field: str
) -> torch.LongTensor:
    if not ids:
        raise RequestError(f"`{prompt_field}` is empty. Give it at least one token.", prompt_field)
    longest = longest_sequence(served.model)
    if longest is not None and len(ids) + config.max_new_tokens > longest:
        raise RequestError(
            f"`{prompt_field}` has {len(ids)} tokens and the answer may have {config.max_new_tokens}, together more "
            f"than the {longest} that the model was trained for. Shorten the prompt, or lower "
            "`max_tokens` and `max_new_tokens`.",
            prompt_field,
            code="context_length_exceeded",
        )
    try:
        return check_prompts(torch.tensor([ids]), None, config, served.model)[0][0].to(served.model.device)
    except (ValueError, OverflowError, RuntimeError) as error:
        raise RequestError(f"`{prompt_field}` cannot be decoded: {error}", prompt_field) from error


def _is_neutral(name: str, value: Any) -> bool:
    # In Python 0 == False, but `logprobs=0` asks for the probabilities of the answer, and `False` for none.
    return any(
        value == neutral and isinstance(value, bool) is isinstance(neutral, bool) for neutral in _NEUTRAL_VALUES[name]
    )


def _check_type(body: dict[str, Any], name: str, kind: type, rule: str) -> None:
    value = body.get(name)
    # A bool is an int, but nobody means it as one.
    if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        raise RequestError(f"`{name}` must be {rule}, got {_shortened(value)}.", name)


def _is_token_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token_id) is int for token_id in value)


def _shortened(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
