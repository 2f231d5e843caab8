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

# The roles of chat templates, by the names that datasets give them, in lower case.
_ROLES = {role: role for role in ("user", "assistant", "system", "developer", "tool")}
_ROLES |= {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant"}
CHAT_COLUMNS = ("messages", "conversations", "conversation")
_READ_COLUMNS = (*CHAT_COLUMNS, "prompt", "completion", "tools", "chat_template_kwargs")
_UNREAD_COLUMNS = ("system", "system_prompt", "image", "images", "video", "videos", "audio", "audios")
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

    The last message of `messages` or `conversations` is the completion, if the assistant wrote it. `tools` and
    `chat_template_kwargs`, which may be JSON texts, belong to the prompt of a chat. Raises a `ValueError` for a row in
    no such form, for an empty prompt, and for columns that belong to a prompt and are not read.
    """
    for name in filter(row.get, _UNREAD_COLUMNS):
        raise ValueError(
            f"The column `{name}` belongs to the prompt and is not read. Make it a message, or remove it."
        )
    given = {name: row[name] for name in _READ_COLUMNS if row.get(name)}
    source = next((name for name in (*CHAT_COLUMNS, "prompt") if name in given), None)
    if source is None:
        for name in {"prompt", *CHAT_COLUMNS}.intersection(row):
            raise ValueError(f"`{name}` has an empty prompt. Drop such rows.")
        raise ValueError(
            "A row needs the columns `prompt` (a text or messages; for training, with `completion`) or `messages`, or "
            f"for training `prompt_ids` and `completion_ids`. It has {sorted(row)}. Rename yours: "
            "`dataset.rename_column('question', 'prompt')`."
        )
    of_template: dict[str, Any] = {"tools": _read_json(given, "tools", list) or None}
    of_template["chat_template_kwargs"] = _read_json(given, "chat_template_kwargs", dict)
    if isinstance(text := given[source], str) and source == "prompt":
        for name in filter(of_template.get, of_template):
            raise ValueError(f"The column `{name}` belongs to a chat, and `prompt` is a text. Remove one of them.")
        if not text.strip():
            raise ValueError("`prompt` has an empty prompt. Drop such rows.")
        return Example(text, given.get("completion"))
    prompt, completion = read_messages(given[source], source), given.get("completion")
    if source != "prompt":
        for name in given.keys() & {*CHAT_COLUMNS, "prompt", "completion"} - {source}:
            # In some datasets a column `prompt` repeats the first question.
            if str(given[name]).strip() not in [message["content"].strip() for message in prompt]:
                raise ValueError(f"The columns `{source}` and `{name}` both have a chat. Remove one of them.")
        if prompt[-1]["role"] == "assistant":
            prompt, completion = prompt[:-1], prompt[-1:]
    elif isinstance(completion, list):
        completion = read_messages(completion, "completion")
    if not prompt:
        raise ValueError(f"`{source}` has an empty prompt. Drop such rows.")
    if prompt[-1]["role"] == "assistant":
        raise ValueError("The prompt ends with a message of the assistant, to be answered by another. Remove it.")
    return Example(prompt, completion, **of_template)


def read_messages(value: Any, name: str) -> list[Message]:
    """Reads a list of messages, and returns it with the keys and roles of chat templates.

    A message has `role` and `content`, or ShareGPT's `from` and `value`, and further keys for the template. Raises a
    `ValueError` for all else, with the `name` of the value.
    """
    if not isinstance(value, list):
        got = f"{type(value).__name__} {str(value)[:60]!r}"
        raise ValueError(f"`{name}` must be a list of messages with `role` and `content`, got the {got}.")
    last = len(value) - 1
    return [_read_message(message, f"Message {n} of `{name}`", n == last) for n, message in enumerate(value)]


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

    arguments = chat_template_kwargs | ({"tools": tools} if tools else {})
    template = tokenizer.get_chat_template(tools=tools)
    for name in arguments:
        if not re.search(rf"\b{re.escape(name)}\b", template):
            raise ValueError(f"The chat template does not use `{name}`. Remove it, or use another template.")
    try:
        text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=add_generation_prompt, **arguments
        )
    except (TemplateError, TypeError) as error:
        roles = ", ".join(str(message["role"]) for message in messages)
        raise ValueError(f"The chat template refuses the messages ({roles}): {error}") from error
    # Some templates forget questions before the last ones, which is their memory.
    last_question = [message for message in messages if message["role"] == "user"][-1:]
    for message in [message for message in messages if message["role"] in ("system", "developer")] + last_question:
        if message["content"].strip() not in text:
            raise ValueError(f"The chat template leaves out the {message['role']} message. Move its text elsewhere.")
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


def _read_message(message: Any, where: str, is_last: bool) -> Message:
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
        if other := [part for part in content if not isinstance(part, Mapping) or part.get("type") != "text"]:
            raise ValueError(f"{where} has the part {str(other[0])[:60]}, and these models read text only.")
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise ValueError(f"{where} must have a text as `{names[1]}`, got {content!r}.")
    is_text_needed = role == "user" or (is_last and role == "assistant" and not any(map(rest.get, _INSTEAD_OF_TEXT)))
    if is_text_needed and not content.strip():
        raise ValueError(f"{where}, of the {role}, must not be empty: `{names[1]}` is {message.get(names[1])!r}.")
    return {"role": role, "content": content, **rest}


def _read_json(row: Mapping[str, Any], name: str, kind: type) -> Any:
    value = row.get(name) or kind()
    if isinstance(value, str):
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value)
    if not isinstance(value, kind):
        raise ValueError(f"`{name}` must be a {kind.__name__} or its JSON text, got {value!r}.")
    return _without_nulls(value)


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
