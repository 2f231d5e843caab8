# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Training data for certainty-forcing distillation: tokenized if it has to be, and checked before training."""

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedTokenizerBase
from transformers.trainer_utils import has_length


if TYPE_CHECKING:
    import datasets


TOKENIZED_COLUMNS = ("prompt_ids", "completion_ids")
TRAINING_COLUMNS = (*TOKENIZED_COLUMNS, "commit_step")
_FORMATS = (TOKENIZED_COLUMNS, ("prompt", "completion"), ("messages",))

RowFunction = Callable[[dict[str, Any]], Any]


def prepare_dataset(
    dataset: Any,
    name: str,
    processing_class: PreTrainedTokenizerBase | None,
    *,
    eos_token_id: int | None = None,
    chat_template_kwargs: dict[str, Any] | None = None,
    max_length: int | None = None,
    check_row: RowFunction | None = None,
) -> Any:
    """Returns `dataset` with the columns `prompt_ids` and `completion_ids`, and checks its rows.

    A data set that has these columns is used as it is. One with `prompt` and `completion` columns, plain text or
    conversational, or with `messages` (the formats of TRL), is tokenized by [`tokenize_row`]; it must be a
    [`~datasets.Dataset`] or a [`~datasets.IterableDataset`]. Streaming data is not read ahead: its rows, except the
    first one, are checked when they are read.

    A `ValueError` names the data set by `name`, and the row. `max_length` is for prompt and completion together;
    `check_row` raises a `ValueError` for a row that cannot be trained on.
    """
    first = None if has_length(dataset) and not len(dataset) else next(iter(dataset), None)
    if first is None:
        raise ValueError(f"`{name}` has 0 rows: did `filter_trajectories` drop everything? Lower its `min_reward`.")
    if not any(first.keys() >= set(names) for names in _FORMATS):
        raise ValueError(
            f"`{name}` needs the columns `prompt_ids` and `completion_ids` (as `generate_trajectories` makes them), "
            f"or `prompt` and `completion` (text or messages), or `messages`; it has {sorted(first)}. Rename yours, "
            "or, if it has questions, let the teacher answer: `hf-dparallel trajectories --prompt_column NAME`."
        )
    if not first.keys() >= set(TOKENIZED_COLUMNS):
        dataset = _tokenize_dataset(dataset, name, processing_class, eos_token_id, chat_template_kwargs)
    if has_length(dataset):
        # Other columns need not be decoded.
        known = [column for column in TRAINING_COLUMNS if column in getattr(dataset, "column_names", ())]
        _check_rows(dataset.select_columns(known) if known else dataset, name, max_length, check_row)
    elif check_row is not None and hasattr(dataset, "map"):

        def check(row: dict[str, Any]) -> dict[str, Any]:
            check_row(row)
            return row

        dataset = dataset.map(_with_number(check, name), with_indices=True)
        next(iter(dataset))
    return dataset


def tokenize_row(
    row: dict[str, Any],
    processing_class: PreTrainedTokenizerBase,
    eos_token_id: int | None = None,
    chat_template_kwargs: dict[str, Any] | None = None,
) -> dict[str, list[int]]:
    """Returns `prompt_ids` and `completion_ids` of a row with `prompt` and `completion`: texts, or lists of messages.

    The last one of `messages` is a completion, too. The prompt is as at inference, with its generation prompt if there
    are messages; the completion ends with its first EOS, by default the tokenizer's.
    """
    messages = row.get("messages") or []
    prompt, completion = row.get("prompt", messages[:-1]), row.get("completion", messages[-1:])
    if isinstance(prompt, str) and isinstance(completion, str):
        prompt_ids = processing_class(prompt)["input_ids"]
        completion_ids = processing_class(completion, add_special_tokens=False)["input_ids"]
    elif isinstance(prompt, list) and isinstance(completion, list):
        template = functools.partial(processing_class.apply_chat_template, **(chat_template_kwargs or {}))
        prompt_ids, completion_ids = _tokenize_messages(prompt, completion, template)
    else:
        raise ValueError(
            "`prompt` and `completion` must both be text, or both lists of messages; got "
            f"{type(prompt).__name__} and {type(completion).__name__}."
        )
    if not completion_ids:
        raise ValueError(f"`completion` is empty, got {completion!r}: there is nothing to learn. Drop such rows.")
    eos_token_id = processing_class.eos_token_id if eos_token_id is None else eos_token_id
    if eos_token_id is None:
        raise ValueError("`processing_class` has no EOS token to end a completion with. Set `tokenizer.eos_token`.")
    # Decoding ends there, and so do trajectories; some templates go on with a line break.
    end = [*completion_ids, eos_token_id].index(eos_token_id)
    return {"prompt_ids": prompt_ids, "completion_ids": [*completion_ids[:end], eos_token_id]}


def _tokenize_messages(
    prompt: list[dict], completion: list[dict], template: Callable[..., Any]
) -> tuple[list[int], list[int]]:
    """The token ids of a prompt and of its answer; none for an empty answer."""
    from jinja2 import TemplateError

    roles = [message["role"] for message in completion]
    if roles != ["assistant"]:
        raise ValueError(
            f"`completion` must be one message of the assistant, got messages of {roles}: all of it is learned. Put "
            "what comes before the last answer into `prompt`, and drop what follows it."
        )
    if not any(value for name, value in completion[0].items() if name != "role"):
        return [], []
    prompt_ids = template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"]
    all_ids = template([*prompt, *completion], return_dict=True)["input_ids"]
    if all_ids[: len(prompt_ids)] != prompt_ids:
        raise ValueError(
            "The chat template writes a prompt with its completion differently from the prompt alone, so the "
            "completion cannot be cut out. Tokenize the rows yourself and pass `prompt_ids` and `completion_ids`."
        )
    closing: list[int] = []
    # LLaDA's template writes the generation prompt also where none is asked for.
    if template(prompt, return_dict=True)["input_ids"] == prompt_ids:
        # One that needs a message writes nothing behind the last one.
        with contextlib.suppress(TemplateError):
            closing = template([[]], return_dict=True)["input_ids"][0]
    # What a template writes for no message at all may have a beginning, too; its end is what counts here.
    while all_ids[len(all_ids) - len(closing) :] != closing:
        closing = closing[1:]
    return prompt_ids, all_ids[len(prompt_ids) : len(all_ids) - len(closing)]


def _tokenize_dataset(
    dataset: Any, name: str, processing_class: PreTrainedTokenizerBase | None, *settings: Any
) -> "datasets.Dataset | datasets.IterableDataset":
    if processing_class is None:
        raise ValueError(
            f"`processing_class` is needed to tokenize the rows of `{name}`, which have no `prompt_ids`. Pass "
            "`processing_class=AutoTokenizer.from_pretrained(...)`."
        )
    if not hasattr(dataset, "map"):
        raise TypeError(
            f"`{name}` without `prompt_ids` must be a `datasets.Dataset`, which can be tokenized, got "
            f"{type(dataset).__name__}. Use `datasets.Dataset.from_list`, or pass the columns `prompt_ids` and "
            "`completion_ids`."
        )
    tokenize = _with_number(lambda row: tokenize_row(row, processing_class, *settings), name)
    return dataset.map(tokenize, with_indices=True)


def _check_rows(dataset: Any, name: str, max_length: int | None, check_row: RowFunction | None) -> None:
    too_long = []

    def check(row: dict[str, Any]) -> None:
        length = sum(len(read_ids(row, column)) for column in TOKENIZED_COLUMNS)
        if max_length is not None and length > max_length:
            too_long.append(length)
        elif check_row is not None:
            check_row(row)

    for index, row in enumerate(dataset):
        _with_number(check, name)(row, index)
    if too_long:
        raise ValueError(
            f"Prompt and completion must fit in `max_length` together, but {len(too_long)} of the {len(dataset)} rows "
            f"of `{name}` are longer than max_length={max_length}; the longest has {max(too_long)} tokens. Use "
            f"max_length={max(too_long)}, or drop the long rows: --drop_long_rows on the command line, in Python "
            f'`dataset.filter(lambda row: len(row["prompt_ids"]) + len(row["completion_ids"]) <= {max_length})`.'
        )


def read_ids(row: dict[str, Any], column: str, remedy: str = "Drop such rows.") -> torch.LongTensor:
    """Returns the token ids, or other numbers, that a row has in a column. It is a `ValueError` if there are none."""
    try:
        ids = torch.as_tensor(row[column])
    except (KeyError, TypeError, ValueError, RuntimeError):
        ids = torch.tensor([])
    if ids.ndim != 1 or len(ids) == 0 or ids.is_floating_point() or ids.long().min() < 0:
        rule = "must be a list of at least one integer, and none below 0"
        raise ValueError(f"`{column}` {rule}, got {row.get(column)!r}. {remedy}")
    return ids.long()


def _with_number(function: RowFunction, name: str) -> Callable[[dict[str, Any], int], Any]:
    """A function of a row and its number, which says in an error which row it is about."""

    def apply(row: dict[str, Any], index: int) -> Any:
        try:
            return function(row)
        except ValueError as error:
            raise ValueError(f"Row {index} of `{name}`: {error}") from error

    return apply
