# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Training data for certainty-forcing distillation: tokenized if necessary, and checked before training."""

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

    A dataset that has these columns is not changed. One with `prompt` and `completion` columns, plain text or
    conversational, or with `messages` (the formats of TRL), is tokenized by [`tokenize_row`]; it must be a
    [`~datasets.Dataset`] or a [`~datasets.IterableDataset`]. Of streamed data, only the first row is checked
    immediately, and the others when they are read.

    Errors give the `name` of the dataset and the number of the row. `max_length` limits the length of prompt and
    completion together. `check_row` raises a `ValueError` for a row that cannot be trained on.
    """
    first = None if has_length(dataset) and not len(dataset) else next(iter(dataset), None)
    if first is None:
        raise ValueError(f"`{name}` has 0 rows: did `filter_trajectories` drop everything? Lower its `min_reward`.")
    if not any(first.keys() >= set(names) for names in _FORMATS):
        raise ValueError(
            f"`{name}` needs the columns `prompt_ids` and `completion_ids` (as `generate_trajectories` makes them), "
            f"or `prompt` and `completion` (text or messages), or `messages`; it has {sorted(first)}. Rename yours, "
            "or, if these are prompts, let the teacher answer them first: `hf-dparallel trajectories`."
        )
    if not first.keys() >= set(TOKENIZED_COLUMNS):
        dataset = _tokenize_dataset(dataset, name, processing_class, eos_token_id, chat_template_kwargs)
    if has_length(dataset):
        # Reading other columns would only take time.
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

    In a row with `messages`, the last message is the completion. Messages go through the chat template, and the prompt
    has the generation prompt, as at inference. The completion ends with its first EOS token (`eos_token_id`, by
    default the tokenizer's), which is added if it has none.
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
            "`prompt` and `completion` must both be texts, or both lists of messages, got "
            f"{type(prompt).__name__} and {type(completion).__name__}."
        )
    if not completion_ids:
        raise ValueError(f"`completion` must not be empty, got {completion!r}. Drop such rows.")
    eos_token_id = processing_class.eos_token_id if eos_token_id is None else eos_token_id
    if eos_token_id is None:
        raise ValueError("`processing_class` has no EOS token to end a completion with. Set `tokenizer.eos_token`.")
    # Decoding stops at EOS, but some templates continue with a line break.
    end = [*completion_ids, eos_token_id].index(eos_token_id)
    return {"prompt_ids": prompt_ids, "completion_ids": [*completion_ids[:end], eos_token_id]}


def _tokenize_messages(
    prompt: list[dict], completion: list[dict], template: Callable[..., Any]
) -> tuple[list[int], list[int]]:
    """Returns the token ids of a prompt and of its answer, or two empty lists if the answer is empty."""
    from jinja2 import TemplateError

    roles = [message["role"] for message in completion]
    if roles != ["assistant"]:
        raise ValueError(
            f"`completion` must be one message of the assistant, got messages of {roles}. Move the messages before "
            "the last answer into `prompt`, and drop the messages after it."
        )
    if not any(value for name, value in completion[0].items() if name != "role"):
        return [], []
    prompt_ids = template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"]
    all_ids = template([*prompt, *completion], return_dict=True)["input_ids"]
    if all_ids[: len(prompt_ids)] != prompt_ids:
        raise ValueError(
            "The chat template renders the prompt differently when a completion follows, so the completion cannot be "
            "separated from it. Tokenize the rows yourself and pass `prompt_ids` and `completion_ids`."
        )
    closing: list[int] = []
    # LLaDA's template always adds the generation prompt, even after the completion, where it has to be cut off.
    if template(prompt, return_dict=True)["input_ids"] == prompt_ids:
        # A template that raises without a message adds nothing after the last one.
        with contextlib.suppress(TemplateError):
            closing = template([[]], return_dict=True)["input_ids"][0]
    # Without a message, a template may also write a beginning, such as BOS: only the end counts.
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
            f"`{name}` must be a `datasets.Dataset` to be tokenized, got {type(dataset).__name__}. Use "
            "`datasets.Dataset.from_list`, or pass the columns `prompt_ids` and `completion_ids`."
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
    """Returns the token ids (or other integers) in a column of a row. Raises a `ValueError` if there are none."""
    try:
        ids = torch.as_tensor(row[column])
    except (KeyError, TypeError, ValueError, RuntimeError):
        ids = torch.tensor([])
    if ids.ndim != 1 or len(ids) == 0 or ids.is_floating_point() or ids.long().min() < 0:
        rule = "must be a list of at least one integer, and none below 0"
        raise ValueError(f"`{column}` {rule}, got {row.get(column)!r}. {remedy}")
    return ids.long()


def _with_number(function: RowFunction, name: str) -> Callable[[dict[str, Any], int], Any]:
    """Wraps a function of a row, so that its errors give the number of the row."""

    def apply(row: dict[str, Any], index: int) -> Any:
        try:
            return function(row)
        except ValueError as error:
            raise ValueError(f"Row {index} of `{name}`: {error}") from error

    return apply
