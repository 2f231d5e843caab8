# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Training data for certainty-forcing distillation: tokenized if it has to be, and checked before training."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedTokenizerBase
from transformers.trainer_utils import has_length


if TYPE_CHECKING:
    import datasets


TOKENIZED_COLUMNS = ("prompt_ids", "completion_ids")
_TEXT_COLUMNS = ("prompt", "completion")


def prepare_dataset(
    dataset: Any,
    name: str,
    processing_class: PreTrainedTokenizerBase | None,
    *,
    eos_token_id: int | None = None,
    max_length: int | None = None,
    required_columns: Sequence[str] = TOKENIZED_COLUMNS,
    check_row: Callable[[dict[str, Any]], Any] | None = None,
) -> Any:
    """Returns `dataset` with the columns `prompt_ids` and `completion_ids`, and checks its rows.

    A data set that has these columns is used as it is. One with `prompt` and `completion` columns, plain text or
    conversational (in the formats of TRL), is tokenized by [`tokenize_row`]; it must be a [`~datasets.Dataset`] or a
    [`~datasets.IterableDataset`]. Streaming data is not read ahead: its rows are checked when they are collated.

    A `ValueError` names the data set by `name`. `max_length` is for prompt and completion together; `check_row` raises
    a `ValueError` for a row that cannot be trained on.
    """
    first = None if has_length(dataset) and not len(dataset) else next(iter(dataset), None)
    if first is None:
        raise ValueError(f"`{name}` has 0 rows: did `filter_trajectories` drop everything? Lower its `min_reward`.")
    columns = first.keys()
    missing = sorted(set(required_columns) - set(TOKENIZED_COLUMNS) - columns)
    if missing:
        raise ValueError(
            f"`{name}` needs the column(s) {missing} for this masking; it has {sorted(columns)}. Make the data with "
            '`generate_trajectories`, or set `masking="semi_autoregressive"`.'
        )
    if not columns >= set(TOKENIZED_COLUMNS):
        if not columns >= set(_TEXT_COLUMNS):
            raise ValueError(
                f"`{name}` needs the columns `prompt_ids` and `completion_ids` (as `generate_trajectories` makes "
                f"them), or `prompt` and `completion` (text or messages); it has {sorted(columns)}. Rename yours with "
                "`dataset.rename_columns`."
            )
        dataset = _tokenize_dataset(dataset, name, processing_class, eos_token_id)
    if has_length(dataset):
        # Other columns need not be decoded.
        read = dataset.select_columns(list(required_columns)) if hasattr(dataset, "select_columns") else dataset
        _check_rows(read, name, max_length, check_row)
    return dataset


def tokenize_row(
    row: dict[str, Any], processing_class: PreTrainedTokenizerBase, eos_token_id: int | None = None
) -> dict[str, list[int]]:
    """Returns `prompt_ids` and `completion_ids` of a row with `prompt` and `completion`: texts, or lists of messages.

    The prompt is as at inference, with its generation prompt if there are messages; the completion ends with an EOS,
    by default the tokenizer's.
    """
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, str) and isinstance(completion, str):
        prompt_ids = processing_class(prompt)["input_ids"]
        completion_ids = processing_class(completion, add_special_tokens=False)["input_ids"]
    elif isinstance(prompt, list) and isinstance(completion, list):
        prompt_ids, completion_ids = _tokenize_messages(prompt, completion, processing_class)
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
    if completion_ids[-1] != eos_token_id:
        completion_ids = [*completion_ids, eos_token_id]
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids}


def _tokenize_messages(
    prompt: list[dict], completion: list[dict], processing_class: PreTrainedTokenizerBase
) -> tuple[list[int], list[int]]:
    template = functools.partial(processing_class.apply_chat_template, tokenize=True, return_dict=True)
    prompt_ids = template(prompt, add_generation_prompt=True)["input_ids"]
    all_ids = template([*prompt, *completion])["input_ids"]
    if all_ids[: len(prompt_ids)] != prompt_ids:
        raise ValueError(
            "The chat template writes a prompt with its completion differently from the prompt alone, so the "
            "completion cannot be cut out. Tokenize the rows yourself and pass `prompt_ids` and `completion_ids`."
        )
    # What a template writes for no message at all may have a beginning, too; its end is what counts here.
    closing = _unasked_generation_prompt(processing_class)
    while all_ids[len(all_ids) - len(closing) :] != closing:
        closing = closing[1:]
    return prompt_ids, all_ids[len(prompt_ids) : len(all_ids) - len(closing)]


def _unasked_generation_prompt(processing_class: PreTrainedTokenizerBase) -> list[int]:
    """The generation prompt, if the chat template writes it also where none is asked for, as LLaDA's does."""
    from jinja2 import TemplateError

    template = processing_class.apply_chat_template
    conversation = [{"role": "user", "content": "?"}]
    if template(conversation, tokenize=False) != template(conversation, tokenize=False, add_generation_prompt=True):
        return []
    try:
        return template([[]], return_dict=True)["input_ids"][0]
    except TemplateError:
        # It needs a message, and has none that closes the conversation.
        return []


def _tokenize_dataset(
    dataset: "datasets.Dataset | datasets.IterableDataset",
    name: str,
    processing_class: PreTrainedTokenizerBase | None,
    eos_token_id: int | None,
) -> "datasets.Dataset | datasets.IterableDataset":
    if processing_class is None:
        raise ValueError(
            f"`processing_class` is needed to tokenize the columns `prompt` and `completion` of `{name}`. Pass "
            "`processing_class=AutoTokenizer.from_pretrained(...)`."
        )
    if not hasattr(dataset, "map"):
        raise TypeError(
            f"`{name}` with `prompt` and `completion` columns must be a `datasets.Dataset`, which can be tokenized, "
            f"got {type(dataset).__name__}. Use `datasets.Dataset.from_list`, or pass the columns `prompt_ids` and "
            "`completion_ids`."
        )

    def tokenize(row: dict[str, Any], index: int) -> dict[str, list[int]]:
        with _named(index, name):
            return tokenize_row(row, processing_class, eos_token_id)

    return dataset.map(tokenize, with_indices=True)


def _check_rows(
    dataset: Any, name: str, max_length: int | None, check_row: Callable[[dict[str, Any]], Any] | None
) -> None:
    too_long = []
    for index, row in enumerate(dataset):
        with _named(index, name):
            length = sum(len(read_ids(row, column)) for column in TOKENIZED_COLUMNS)
            if max_length is not None and length > max_length:
                too_long.append(length)
            elif check_row is not None:
                check_row(row)
    if too_long:
        raise ValueError(
            f"Prompt and completion must fit in `max_length` together, but {len(too_long)} of the {len(dataset)} rows "
            f"of `{name}` are longer than max_length={max_length}; the longest has {max(too_long)} tokens. Use "
            f"max_length={max(too_long)}, or drop the long rows: --drop_long_rows on the command line, in Python "
            f'`dataset.filter(lambda row: len(row["prompt_ids"]) + len(row["completion_ids"]) <= {max_length})`.'
        )


def read_ids(row: dict[str, Any], column: str) -> torch.LongTensor:
    """Returns the token ids that a row has in a column. It is a `ValueError` if there are none."""
    try:
        ids = torch.as_tensor(row[column])
    except (TypeError, ValueError, RuntimeError):
        ids = torch.tensor([])
    if ids.ndim != 1 or len(ids) == 0 or ids.is_floating_point():
        raise ValueError(f"`{column}` must be a list of at least one token id, got {row[column]!r}. Drop such rows.")
    return ids.long()


@contextlib.contextmanager
def _named(index: int, name: str) -> Iterator[None]:
    """Says in an error which row it is about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"Row {index} of `{name}`: {error}") from error


__all__ = ["TOKENIZED_COLUMNS", "prepare_dataset", "read_ids", "tokenize_row"]
