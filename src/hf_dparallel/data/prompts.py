# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Reads the rows of any dataset into one form, and their prompts into tokens.

Trajectories, training, evaluation and the commands read prompts with these functions. Columns that belong to a prompt,
and that are not used, are an error; all others (ids, answers, sources) are left alone.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

from .chats import check_is_written, encode_chat, encode_text
from .messages import Message, parse_json, read_messages


if TYPE_CHECKING:
    from datasets import Dataset

CHAT_COLUMNS = ("messages", "conversations", "conversation")
_READ_COLUMNS = (*CHAT_COLUMNS, "prompt", "completion", "tools", "chat_template_kwargs")
_UNREAD_COLUMNS = ("system", "system_prompt", "image", "images", "video", "videos", "audio", "audios")
_JSON_OF_MESSAGES = re.compile(r'\s*\[\s*\{\s*"(role|content|from|value)"\s*:')


@dataclass(frozen=True)
class Example:
    """A row in one form: texts, or messages with the keys `role` and `content`, and what the chat template takes."""

    prompt: str | list[Message]
    # A text, or one message of the assistant.
    completion: str | list[Message] | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)


def read_example(row: Mapping[str, Any], features: Mapping[str, Any] | None = None) -> Example:
    """Reads a row in one of TRL's formats (`prompt`, with or without `completion`; `messages`) or in ShareGPT's.

    The last message of `messages` or `conversations` is the completion, if the assistant wrote it. `tools` and
    `chat_template_kwargs`, which may be JSON texts, belong to the prompt of a chat. Nulls count as missing, but where
    the `features` of the dataset say that it is JSON. Raises a `ValueError` for a row in no such form, for an empty
    prompt, and for columns that belong to a prompt and are not read.
    """
    for name in filter(row.get, _UNREAD_COLUMNS):
        raise ValueError(
            f"The column `{name}` belongs to the prompt and is not read. Make it a message, or remove it."
        )

    types = features or {}
    given = {name: _without_nulls(row[name], types.get(name)) for name in _READ_COLUMNS if row.get(name)}
    source = next((name for name in (*CHAT_COLUMNS, "prompt") if name in given), None)
    if source is None:
        for name in {"prompt", *CHAT_COLUMNS}.intersection(row):
            raise ValueError(f"`{name}` has an empty prompt. Drop such rows.")
        raise ValueError(
            "A row needs the columns `prompt` (a text or messages; for training, with `completion`) or `messages`, or "
            f"for training `prompt_ids` and `completion_ids`. It has {sorted(row)}. Rename yours: "
            "`dataset.rename_column('question', 'prompt')`."
        )

    tools = _read_json(given, "tools", list)
    arguments = _read_json(given, "chat_template_kwargs", dict)
    if source == "prompt" and isinstance(given["prompt"], str):
        if tools or arguments:
            name = "tools" if tools else "chat_template_kwargs"
            raise ValueError(f"The column `{name}` belongs to a chat, and `prompt` is a text. Remove one of them.")
        return _read_texts(given["prompt"], given.get("completion"))

    prompt = read_messages(given[source], source)
    completion = given.get("completion")
    if source != "prompt":
        _check_is_alone(given, source, prompt)
        if prompt[-1]["role"] == "assistant":
            completion = [prompt.pop()]
    elif isinstance(completion, list):
        completion = read_messages(completion, "completion")

    if not prompt:
        raise ValueError(f"`{source}` has an empty prompt. Drop such rows.")
    if prompt[-1]["role"] == "assistant":
        raise ValueError("The prompt ends with a message of the assistant, to be answered by another. Remove it.")
    return Example(prompt, completion, tools or None, arguments)


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase, example: Example, chat_template_kwargs: dict[str, Any] | None = None
) -> list[int]:
    """Returns the token ids of the prompt of a row, whose own arguments for the template win."""
    if isinstance(example.prompt, str):
        return encode_text(tokenizer, example.prompt)

    arguments = template_arguments(example, chat_template_kwargs)
    check_is_written(tokenizer, example.prompt, **arguments)
    return encode_chat(tokenizer, example.prompt, **arguments)


def template_arguments(example: Example, chat_template_kwargs: dict[str, Any] | None) -> dict[str, Any]:
    """Returns what the chat template takes beside the messages of a row. The row's own arguments win."""
    return {**(chat_template_kwargs or {}), **example.chat_template_kwargs, "tools": example.tools}


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
            example = read_example(row, getattr(dataset, "features", None))
            prompt = encode_prompt(tokenizer, example, chat_template_kwargs)
            if mask_token_id in prompt:
                token = tokenizer.decode([mask_token_id])
                raise ValueError(
                    f"Its prompt contains the mask token {token!r} ({mask_token_id}), but prompts are not decoded. "
                    "Remove it. If the chat template writes it, convert with another (docs/make_a_teacher.md)."
                )
            prompts.append(prompt)
    return prompts


def read_prompts(dataset: "Dataset") -> list[str | list[Message]]:
    """Returns the prompts of a dataset: texts, or lists of messages; empty texts, if it has no column of prompts."""
    if not {"prompt", *CHAT_COLUMNS} & set(dataset.column_names):
        return [""] * len(dataset)

    prompts = []
    for number, row in enumerate(plain_rows(dataset)):
        with errors_of_row(number, "dataset"):
            prompts.append(read_example(row, dataset.features).prompt)
    return prompts


def has_texts(dataset: "Dataset") -> bool:
    """Tells whether the prompts are plain texts, which do not go through a chat template."""
    first = dataset.select(range(min(1, len(dataset))))
    prompts = read_prompts(first)
    return bool(prompts) and isinstance(prompts[0], str) and prompts[0] != ""


def plain_rows(dataset: Any) -> Any:
    """Returns a dataset without a format such as "numpy" or "pandas", but with a transform of its user."""
    form = getattr(dataset, "format", None)
    if isinstance(form, dict) and form["type"] not in (None, "custom"):
        return dataset.with_format(None)
    return dataset


def check_new_columns(dataset: "Dataset", new: Sequence[str]) -> None:
    """Raises an error if this is no dataset with rows to decode, or already has one of the `new` columns."""
    check_is_dataset(dataset)
    taken = [name for name in new if name in dataset.column_names]
    if taken:
        raise ValueError(
            f"`dataset` already has the columns {taken}, which the answers would overwrite. Remove them: "
            f"`dataset.remove_columns({taken})`."
        )


def check_is_dataset(dataset: Any) -> None:
    """Raises a `TypeError` unless this is a dataset with rows: no stream, and no dictionary of splits."""
    from datasets import Dataset

    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"`dataset` must be a `datasets.Dataset`, got {type(dataset).__name__}. Use one split of it, or read a "
            "stream: `datasets.Dataset.from_list(list(stream))`."
        )


@contextlib.contextmanager
def errors_of_row(number: int, name: str) -> Iterator[None]:
    """Puts the number of a row before the errors that its reading raises."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"Row {number} of `{name}`: {error}") from error


def _without_nulls(value: Any, feature: Any) -> Any:
    """Returns a value without the nulls that `datasets` puts where only other rows have a key.

    It puts none into JSON. `feature` is the type of the value, `None` if it is not known.
    """
    from datasets import Json

    if isinstance(feature, Json):
        return value
    if isinstance(value, dict):
        parts = feature if isinstance(feature, dict) else {}
        return {name: _without_nulls(part, parts.get(name)) for name, part in value.items() if part is not None}
    if isinstance(value, list):
        return [_without_nulls(part, getattr(feature, "feature", None)) for part in value]
    return value


def _read_texts(prompt: str, completion: Any) -> Example:
    for name, text in (("prompt", prompt), ("completion", completion)):
        if isinstance(text, str) and _JSON_OF_MESSAGES.match(text):
            raise ValueError(f"`{name}` is the JSON text of messages. Parse it: `dataset.map` with `json.loads`.")

    if not prompt.strip():
        raise ValueError("`prompt` has an empty prompt. Drop such rows.")
    return Example(prompt, completion)


def _check_is_alone(given: Mapping[str, Any], source: str, messages: list[Message]) -> None:
    """Raises a `ValueError` if a row has another chat beside that in the column `source`."""
    texts = [message["content"].strip() for message in messages]
    for name in given.keys() & {*CHAT_COLUMNS, "prompt", "completion"} - {source}:
        # In some datasets a column `prompt` repeats the first question.
        if str(given[name]).strip() not in texts:
            raise ValueError(f"The columns `{source}` and `{name}` both have a chat. Remove one of them.")


def _read_json(given: Mapping[str, Any], name: str, kind: type) -> Any:
    value = parse_json(given.get(name)) or kind()
    if not isinstance(value, kind):
        raise ValueError(f"`{name}` must be a {kind.__name__} or its JSON text, got {value!r}.")
    return value
