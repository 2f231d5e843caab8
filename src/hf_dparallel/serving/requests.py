# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Reads prompts and settings from the JSON of a request. Unsupported values are refused, never ignored."""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jinja2
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_dparallel_rules.settings import SETTINGS, SettingError

from ..generation.compatibility import REVISIONS, check, longest_sequence
from ..generation.configuration import DiffusionGenerationConfig, resolve
from ..generation.inputs import check_prompts
from .bodies import Body, ChatBody, RequestError, TextBody, read_body, shortened
from .json_answers import CompiledSchema, compile_schema
from .tool_calls import ToolChoice, read_tool_choice


# A limit of the size of a response: each takes about 60 bytes of JSON.
_MOST_LOGPROBS = 100_000


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
    schema: CompiledSchema | None
    tools: ToolChoice | None


def read_request(kind: type[Body], given: dict[str, Any], served: ServedModel, max_prompts: int) -> CompletionRequest:
    """Returns the request of a JSON object, or raises a [`RequestError`].

    `max_prompts` limits the answers, because the engine accepts all prompts of a request or none.
    """
    body, asked = read_body(kind, given)
    prompts: list[Any] = [body.messages] if isinstance(body, ChatBody) else body.prompt
    if isinstance(body, ChatBody) and served.tokenizer.chat_template is None:
        raise RequestError("The tokenizer of this model has no chat template. Use /v1/completions.", kind.prompt_field)
    if len(prompts) * body.n > max_prompts:
        field, number = "n" if body.n > 1 else kind.prompt_field, shortened(len(prompts) * body.n)
        raise RequestError(f"`{field}` asks for {number} answers. Ask for at most {max_prompts}.", field)
    if body.top_logprobs and not body.logprobs:
        raise RequestError(f"`top_logprobs={body.top_logprobs}` needs `logprobs`. Set that to true.", "top_logprobs")
    config, max_tokens = _read_settings(body, asked, served)
    if body.logprobs and body.n * max_tokens * (1 + body.top_logprobs) > _MOST_LOGPROBS:
        answers = f"`n={body.n}` answers of {max_tokens} tokens with `top_logprobs={body.top_logprobs}`"
        message = f"{answers} have more than {_MOST_LOGPROBS} log-probabilities. Ask for fewer."
        raise RequestError(message, "top_logprobs")
    if body.n > 1 and not config.temperature:
        raise RequestError(f"`n={body.n}` would give equal answers at temperature 0. Set `temperature`.", "n")
    tools = read_tool_choice(body)
    return CompletionRequest(
        body,
        schema=_read_schema(body, tools, served, config),
        tools=tools,
        prompts=[_read_prompt(prompt, tools, config, served, kind.prompt_field) for prompt in prompts],
        config=config,
        max_tokens=max_tokens,
        seed=secrets.randbits(62) if body.seed is None else body.seed,
        stop=body.stop or config.stop_strings,
    )


def choose_model(name: Any, models: Mapping[str, ServedModel]) -> ServedModel:
    """Returns the model of this name, or the first model for `None`. Raises a [`RequestError`] for unknown names."""
    if name is None:
        return next(iter(models.values()))
    if not isinstance(name, str) or name not in models:
        served = ", ".join(f"`{known}`" for known in models)
        message = f"The model `{shortened(name)}` does not exist. This server has {served}."
        raise RequestError(message, "model", 404, "model_not_found")
    return models[name]


def _encode(prompt: Any, tools: ToolChoice | None, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    if isinstance(prompt, str):
        return tokenizer(prompt)["input_ids"]
    if isinstance(prompt[0], int):
        return prompt
    return _encode_chat([message.for_template() for message in prompt], tokenizer, tools.tools if tools else None)


def _encode_chat(
    messages: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase, tools: list[dict[str, Any]] | None = None
) -> list[int]:
    """Applies the chat template, and tokenizes special tokens that a message spells out as plain text.

    A random mark cuts each of them into two, which are tokenized apart.
    """
    cut = secrets.token_hex(16)
    special = "|".join(re.escape(token.content) for token in tokenizer.added_tokens_decoder.values() if token.special)
    if special:
        # The place to cut is after the first character of each.
        first = re.compile(f"(?=(?:{special}))(.)", re.DOTALL)

        def as_text(given: Any) -> Any:
            if isinstance(given, dict):
                return {as_text(name): as_text(value) for name, value in given.items()}
            if isinstance(given, list):
                return list(map(as_text, given))
            return first.sub(rf"\g<1>{cut}", given) if isinstance(given, str) else given

        messages = [{name: as_text(given) for name, given in message.items()} for message in messages]
        tools = as_text(tools)
    text = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
    parts = tokenizer(text.split(cut), add_special_tokens=False)["input_ids"]
    return [token_id for part in parts for token_id in part]


def _read_schema(
    body: ChatBody | TextBody, tools: ToolChoice | None, served: ServedModel, config: DiffusionGenerationConfig
) -> CompiledSchema | None:
    if tools is not None and tools.must:
        return _compile(tools.schema(), served, config, "tools")
    field, form = "response_format", body.response_format
    schema = form.json_schema.schema_ if form is not None and form.json_schema is not None else None
    if form is None or (form.type == "text" and schema is None):
        return None
    if (form.type == "json_schema") is (schema is None):
        raise RequestError(f"`{field}` must have the type json_schema and a schema, or neither.", field)
    if schema is None:
        schema = {"type": "object"}
    return _compile(schema, served, config, field)


def _compile(
    schema: dict[str, Any], served: ServedModel, config: DiffusionGenerationConfig, field: str
) -> CompiledSchema:
    if not config.stop_at_eos or not config.eos_token_ids:
        raise RequestError(f"`{field}` needs an end-of-sequence token, and `stop_at_eos=true`.", field)
    try:
        compiled = compile_schema(schema, served.tokenizer, served.model.config.vocab_size, config.eos_token_ids)
    except ValueError as error:
        raise RequestError(f"`{field}` cannot be answered: {error}", field) from error
    for name in filter(config.is_on, REVISIONS):
        off = SETTINGS[name].default
        remedy = f"Leave out `{name}`." if off is None else f"Send `{name}={off}`."
        raise RequestError(f"`{field}` needs settings that revise no tokens. {remedy}", field)
    return compiled


def _read_settings(
    body: ChatBody | TextBody, asked: dict[str, Any], served: ServedModel
) -> tuple[DiffusionGenerationConfig, int]:
    """Returns the generation settings and the largest number of tokens of the answer.

    `max_tokens` does not shorten the canvas, so a shorter answer is the beginning of a longer one, and requests with
    different `max_tokens` share passes. Above `max_new_tokens` it extends the canvas by whole blocks.
    """
    if asked.get("max_new_tokens") == 0:
        raise RequestError("`max_new_tokens` must be a positive integer, got 0.", "max_new_tokens")
    try:
        given, length = served.generation_config, SETTINGS["max_new_tokens"].read(asked.get("max_new_tokens"))
        if length and given.max_new_tokens:
            given = _of_length(given, length)
        config = resolve(served.model, given, served.tokenizer, **asked)
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


def _read_prompt(
    prompt: Any, tools: ToolChoice | None, config: DiffusionGenerationConfig, served: ServedModel, field: str
) -> torch.LongTensor:
    """Returns the token ids of a text, a conversation, or a list of ids, after checking that they can be decoded."""
    try:
        ids = _encode(prompt, tools, served.tokenizer)
    except (jinja2.TemplateError, TypeError) as error:
        raise RequestError(f"The chat template of the model refuses the messages: {error}", field) from error
    if not ids:
        raise RequestError(f"`{field}` is empty. Give it at least one token.", field)
    longest = longest_sequence(served.model)
    if longest is not None and len(ids) + config.max_new_tokens > longest:
        # OpenAI's words, by which clients recognize this error.
        raise RequestError(
            f"This model's maximum context length is {longest} tokens. `{field}` has {len(ids)} and the answer may "
            f"have {config.max_new_tokens}. Shorten the conversation, or lower `max_tokens` and `max_new_tokens`.",
            field,
            code="context_length_exceeded",
        )
    try:
        return check_prompts(torch.tensor([ids]), None, config, served.model)[0][0].to(served.model.device)
    except (ValueError, OverflowError, RuntimeError) as error:
        raise RequestError(f"`{field}` cannot be decoded: {error}", field) from error
