# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Reads the rows of any dataset into one form, and renders them as tokens.

Trajectories, training, evaluation, the server and the commands read prompts with these functions. Columns that belong
to a prompt, and that are not used, are an error; all others (ids, answers, sources) are left alone.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase


if TYPE_CHECKING:
    from datasets import Dataset

Message = dict[str, Any]

_ASSISTANTS = ("assistant", "gpt", "chatgpt", "bing", "bard", "claude", "bot", "ai", "model")
# The roles of chat templates, by the names that datasets give them, in lower case.
_ROLES = {"user": "user", "human": "user", **dict.fromkeys(_ASSISTANTS, "assistant")}
_ROLES |= {role: role for role in ("system", "developer", "tool")}
CHAT_COLUMNS = ("messages", "conversations", "conversation")
_SYSTEM_COLUMNS = ("system", "system_prompt")
_MEDIA_COLUMNS = ("image", "images", "video", "videos", "audio", "audios")
# What a message of the assistant may have instead of a text.
_INSTEAD_OF_TEXT = ("tool_calls", "reasoning_content", "thinking")


@dataclass(frozen=True)
class Example:
    """A row in one form: texts, or messages with the keys `role` and `content`, and what the chat template takes."""

    prompt: str | list[Message]
    # A text, or one message of the assistant.
    completion: str | list[Message] | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)


def read_example(row: Mapping[str, Any]) -> Example:
    """Reads a row in one of TRL's formats (`prompt`, with or without `completion`; `messages`) or in ShareGPT's.

    Lists of messages may be JSON texts. The last message of `messages` or `conversations` is the completion, if the
    assistant wrote it. `tools`, `chat_template_kwargs`, `system` and `system_prompt` belong to the prompt of a chat.
    Raises a `ValueError` for a row in no such form, for an empty prompt, and for images and the like.
    """
    columns, row = sorted(row), {name: value for name, value in row.items() if value is not None}
    for name in filter(row.get, _MEDIA_COLUMNS):
        raise ValueError(f"The column `{name}` belongs to the prompt, and these models read text only. Remove it.")
    source = next((name for name in (*CHAT_COLUMNS, "prompt") if name in row), None)
    if source is None:
        for name in {"prompt", *CHAT_COLUMNS}.intersection(columns):
            raise ValueError(f"`{name}` has an empty prompt. Drop such rows.")
        raise ValueError(
            "A row needs the columns `prompt` (a text or messages; for training, with `completion`) or `messages`, or "
            f"for training `prompt_ids` and `completion_ids`. It has {columns}. Rename yours: "
            "`dataset.rename_column('question', 'prompt')`."
        )
    answers = [name for name in (*CHAT_COLUMNS, "completion") if name in row]
    if len(answers) > 1:
        raise ValueError(f"The columns `{answers[0]}` and `{answers[1]}` both have an answer. Remove one of them.")
    if source == "prompt" and isinstance(row["prompt"], str):
        return _read_texts(row)
    prompt, completion = read_messages(row[source], source), row.get("completion")
    if isinstance(completion, list):
        completion = read_messages(completion, "completion")
    if source != "prompt":
        asked = row.get("prompt")
        # In some datasets a column `prompt` repeats the first question.
        if asked and not (isinstance(asked, str) and any(asked.strip() == each["content"].strip() for each in prompt)):
            raise ValueError(f"The columns `prompt` and `{source}` both have a prompt. Remove one of them.")
        if prompt and prompt[-1]["role"] == "assistant":
            prompt, completion = prompt[:-1], prompt[-1:]
    for name in filter(row.get, _SYSTEM_COLUMNS):
        prompt = _with_system(prompt, row[name], name)
    if not prompt:
        raise ValueError(f"`{source}` has an empty prompt. Drop such rows.")
    if prompt[-1]["role"] == "assistant":
        raise ValueError("The prompt ends with a message of the assistant, to be answered by another. Remove it.")
    tools, arguments = (
        _read_json(row, name, kind) for name, kind in (("tools", list), ("chat_template_kwargs", dict))
    )
    return Example(prompt, completion, tools or None, arguments)


def read_messages(value: Any, name: str) -> list[Message]:
    """Reads a list of messages, or its JSON text, and returns it with the keys and roles of chat templates.

    A message has `role` and `content`, or ShareGPT's `from` and `value`, and further keys for the template. Raises a
    `ValueError` for all else, with the `name` of the value.
    """
    value = _parsed(value)
    if isinstance(value, Mapping) and all(isinstance(column, list) for column in value.values()):
        # How `datasets` returns a list of messages whose feature is a `Sequence`.
        value = [dict(zip(value, turn, strict=True)) for turn in zip(*value.values(), strict=True)]
    if not isinstance(value, list):
        got = f"{type(value).__name__} {str(value)[:60]!r}"
        raise ValueError(f"`{name}` must be a list of messages with `role` and `content`, got the {got}.")
    return [_read_message(_parsed(message), f"Message {number} of `{name}`") for number, message in enumerate(value)]


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Returns the token ids of a text that is to be continued.

    They begin with the tokens that the tokenizer puts before texts (BOS), once, and have none that close a text.
    """
    ids, own = (tokenizer(_checked(text), add_special_tokens=added)["input_ids"] for added in (True, False))
    start = next((start for start in range(len(ids)) if ids[start : start + len(own)] == own), 0)
    return own if own[:start] == ids[:start] else ids[: start + len(own)]


def render_chat(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    tools: list[dict[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    **chat_template_kwargs: Any,
) -> str:
    """Returns a chat as text. Raises a `ValueError` if the template refuses or leaves out what it is given."""

    def render(**arguments: Any) -> str:
        try:
            return tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=add_generation_prompt, **arguments
            )
        except (TemplateError, TypeError) as error:
            roles = ", ".join(str(message["role"]) for message in messages)
            raise ValueError(f"The chat template refuses the messages ({roles}): {error}") from error

    text = render(tools=tools, **chat_template_kwargs)
    if tools and text == render(**chat_template_kwargs):
        raise ValueError("The chat template does not use `tools`. Remove them, or use another template.")
    # Some templates forget questions before the last ones, which is their memory.
    last_question = [message for message in messages if message["role"] == "user"][-1:]
    for message in [message for message in messages if message["role"] in ("system", "developer")] + last_question:
        if message["content"].strip() not in text:
            raise ValueError(f"The chat template leaves out the {message['role']} message. Move its text elsewhere.")
    template = tokenizer.get_chat_template(tools=tools)
    for name in chat_template_kwargs:
        if not re.search(rf"\b{re.escape(name)}\b", template):
            raise ValueError(f"`chat_template_kwargs` has {name!r}, which the chat template does not use. Remove it.")
    return text


def encode_chat(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], **arguments: Any) -> list[int]:
    """Returns the token ids of a chat, whose arguments are those of [`render_chat`]."""
    text = _checked(render_chat(tokenizer, messages, **arguments))
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase, example: Example, chat_template_kwargs: dict[str, Any] | None = None
) -> list[int]:
    """Returns the token ids of the prompt of a row, whose own arguments for the template win."""
    if isinstance(example.prompt, str):
        return encode_text(tokenizer, example.prompt)
    arguments = {**(chat_template_kwargs or {}), **example.chat_template_kwargs}
    return encode_chat(tokenizer, example.prompt, tools=example.tools, **arguments)


def tokenize_prompts(
    dataset: "Dataset",
    tokenizer: PreTrainedTokenizerBase,
    mask_token_id: int | None = None,
    chat_template_kwargs: dict[str, Any] | None = None,
) -> list[list[int]]:
    """Returns the token ids of the prompts of a dataset.

    Texts are tokenized as they are; messages go through the chat template. Raises a `ValueError` with the number of
    the row for what [`read_example`] refuses, and for prompts with `mask_token_id`, if the model has one.
    """
    if len(dataset) == 0:
        raise ValueError("`dataset` has no rows. Check its split and its filters.")
    prompts = []
    for number, row in enumerate(plain_rows(dataset)):
        with errors_of_row(number, "dataset"):
            prompts.append(encode_prompt(tokenizer, read_example(row), chat_template_kwargs))
            if not prompts[-1]:
                raise ValueError("It has an empty prompt: no tokens. Drop such rows with `dataset.filter`.")
            if mask_token_id in prompts[-1]:
                raise ValueError(
                    f"Its prompt contains the mask token ({mask_token_id}), but prompts are not decoded. Remove it."
                )
    return prompts


def read_prompts(dataset: "Dataset") -> list[str | list[Message]]:
    """Returns the prompts of a dataset: texts, or lists of messages; empty texts, if it has no column of prompts."""
    if not {"prompt", *CHAT_COLUMNS} & set(dataset.column_names):
        return [""] * len(dataset)
    prompts = []
    for number, row in enumerate(plain_rows(dataset)):
        with errors_of_row(number, "dataset"):
            prompts.append(read_example(row).prompt)
    return prompts


def has_texts(dataset: "Dataset") -> bool:
    """Tells whether the prompts are plain texts, which do not go through a chat template."""
    first = read_prompts(dataset.select(range(min(1, len(dataset)))))
    return any(isinstance(prompt, str) and prompt for prompt in first)


def plain_rows(dataset: Any) -> Any:
    """Returns a dataset without a format such as "numpy" or "pandas", but with a transform of its user."""
    form = getattr(dataset, "format", None)
    is_formatted = isinstance(form, dict) and form["type"] not in (None, "custom")
    return dataset.with_format(None) if is_formatted else dataset


def check_new_columns(dataset: "Dataset", new: Sequence[str]) -> None:
    """Raises an error if this is no dataset with rows to decode, or already has one of the `new` columns."""
    from datasets import Dataset

    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"`dataset` must be a `datasets.Dataset`, got {type(dataset).__name__}. Use "
            "`datasets.Dataset.from_list`, or one split of it."
        )
    if taken := [name for name in new if name in dataset.column_names]:
        raise ValueError(
            f"`dataset` already has the columns {taken}, which the answers would overwrite. Remove them: "
            f"`dataset.remove_columns({taken})`."
        )


@contextlib.contextmanager
def errors_of_row(number: int, name: str) -> Iterator[None]:
    """Puts the number of a row before the errors that its reading raises."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"Row {number} of `{name}`: {error}") from error


def _read_texts(row: Mapping[str, Any]) -> Example:
    for name in ("prompt", "completion"):
        parsed = _parsed(row[name]) if isinstance(row.get(name), str) else None
        if isinstance(parsed, list) and any(isinstance(one, dict) and {"role", "from"} & one.keys() for one in parsed):
            raise ValueError(
                f"`{name}` is the JSON text of messages. Parse it: "
                f'`dataset.map(lambda row: {{"{name}": json.loads(row["{name}"])}})`.'
            )
    for name in (*_SYSTEM_COLUMNS, "tools", "chat_template_kwargs"):
        if _parsed(row.get(name)):
            raise ValueError(f"The column `{name}` belongs to a chat, and `prompt` is a text. Remove one of them.")
    if not row["prompt"].strip():
        raise ValueError("`prompt` has an empty prompt. Drop such rows.")
    return Example(row["prompt"], row.get("completion"))


def _read_message(message: Any, where: str) -> Message:
    if not isinstance(message, Mapping):
        raise ValueError(f"{where} must have `role` and `content`, got {str(message)[:60]!r}.")
    # `datasets` gives every message the keys of all.
    rest = {name: value for name, value in message.items() if value is not None}
    names = ("role", "content") if "role" in rest else ("from", "value")
    given, content = rest.pop(names[0], None), rest.pop(names[1], "")
    role = _ROLES.get(str(given).lower())
    if role is None:
        raise ValueError(f"{where} has the role {given!r}. Rename it to one of {', '.join(_ROLES)}.")
    if isinstance(content, list):
        parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
        if other := [part.get("type") for part in parts if part.get("type") != "text"]:
            raise ValueError(f"{where} has a part of type {other[0]!r}, and these models read text only.")
        content = "".join(part["text"] for part in parts)
    if not isinstance(content, str):
        raise ValueError(f"{where} must have a text as `{names[1]}`, got {content!r}.")
    is_text_needed = role == "user" or (role == "assistant" and not any(map(rest.get, _INSTEAD_OF_TEXT)))
    if is_text_needed and not content.strip():
        raise ValueError(f"{where}, of the {role}, must not be empty: `{names[1]}` is {message.get(names[1])!r}.")
    return {"role": role, "content": content, **rest}


def _with_system(messages: list[Message], text: str, column: str) -> list[Message]:
    if not text.strip():
        return messages
    if not messages or messages[0]["role"] not in ("system", "developer"):
        return [{"role": "system", "content": text}, *messages]
    if messages[0]["content"].strip() != text.strip():
        raise ValueError(f"The column `{column}` differs from the system message of the chat. Remove one of them.")
    return messages


def _read_json(row: Mapping[str, Any], name: str, kind: type) -> Any:
    value = _parsed(row.get(name) or kind())
    if not isinstance(value, kind):
        raise ValueError(f"`{name}` must be a {kind.__name__} or its JSON text, got {value!r}.")
    return _without_nulls(value)


def _parsed(value: Any) -> Any:
    """Returns the value of a JSON text of a list or an object, and all else as it is."""
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def _without_nulls(value: Any) -> Any:
    """Returns a value without the nulls that `datasets` puts where only other rows have a key."""
    if isinstance(value, dict):
        return {name: _without_nulls(part) for name, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value


def _checked(text: str) -> str:
    """Returns a text. Raises a `ValueError` if it was read from bytes in another encoding than UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("The prompt is not UTF-8 text. Convert it: `iconv -f latin1 -t utf-8`.") from error
    return text
