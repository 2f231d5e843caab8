# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Training data for certainty-forcing distillation: tokenized if it has to be, and checked before training."""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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
    max_length: int | None,
    required_columns: Sequence[str] = TOKENIZED_COLUMNS,
) -> Any:
    r"""
    Returns `dataset` with the columns `prompt_ids` and `completion_ids`, and checks their lengths.

    A data set that has these columns is used as it is. One with `prompt` and `completion` columns, plain text or
    conversational (in the formats of TRL), is tokenized: the prompt as it is at inference (with its generation prompt,
    if conversational), the completion with an EOS after it.

    Args:
        dataset ([`~datasets.Dataset`], [`~datasets.IterableDataset`] or any torch data set of `dict`s):
            The data. Text columns need one of the first two. Streaming data is not read ahead: its rows are checked
            when they are collated.
        name (`str`):
            What to call the data set in messages, e.g. `"train_dataset"`.
        processing_class ([`~transformers.PreTrainedTokenizerBase`], *optional*):
            The tokenizer. Needed for text columns.
        max_length (`int`, *optional*):
            The most tokens that a prompt and completion may have together. `None`: any number.
        required_columns (`Sequence[str]`, *optional*):
            The columns that are needed in the end: more than `prompt_ids` and `completion_ids` cannot be tokenized.

    Raises:
        ValueError: if the data set is empty, lacks columns, has empty completions or rows longer than `max_length`.
    """
    columns = _first_row(dataset, name).keys()
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
        dataset = _tokenize_dataset(dataset, name, processing_class)
    if has_length(dataset):
        _check_lengths(dataset, name, max_length)
    return dataset


def tokenize_row(row: dict[str, Any], processing_class: PreTrainedTokenizerBase) -> dict[str, list[int]]:
    r"""
    Tokenizes the `prompt` and `completion` of a row.

    Args:
        row (`dict`):
            Both as `str`; or both as lists of messages (`{"role": ..., "content": ...}`).
        processing_class ([`~transformers.PreTrainedTokenizerBase`]):
            The tokenizer.

    Returns:
        `dict` with `prompt_ids` and `completion_ids`, the latter ending with EOS.
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
    if completion_ids[-1:] != [processing_class.eos_token_id]:
        completion_ids = [*completion_ids, processing_class.eos_token_id]
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
    return prompt_ids, all_ids[len(prompt_ids) :]


def _tokenize_dataset(
    dataset: "datasets.Dataset | datasets.IterableDataset", name: str, processing_class: PreTrainedTokenizerBase | None
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
    return dataset.map(tokenize_row, fn_kwargs={"processing_class": processing_class})


def _first_row(dataset: Any, name: str) -> dict[str, Any]:
    row = next(iter(dataset), None) if not has_length(dataset) or len(dataset) > 0 else None
    if row is None:
        raise ValueError(f"`{name}` has 0 rows: did `filter_trajectories` drop everything? Lower its `min_reward`.")
    return row


def _check_lengths(dataset: Any, name: str, max_length: int | None) -> None:
    lengths = [(len(row["prompt_ids"]), len(row["completion_ids"])) for row in _only_tokens(dataset)]
    num_empty = sum(completion == 0 for _, completion in lengths)
    if num_empty:
        raise ValueError(
            f"`completion_ids` must not be empty, but {num_empty} of the {len(lengths)} rows of `{name}` have none. "
            'Drop them with `dataset.filter(lambda row: len(row["completion_ids"]) > 0)`.'
        )
    if max_length is None:
        return
    too_long = [prompt + completion for prompt, completion in lengths if prompt + completion > max_length]
    if too_long:
        raise ValueError(
            f"Prompt and completion must fit in `max_length` together, but {len(too_long)} of the {len(lengths)} rows "
            f"of `{name}` are longer than max_length={max_length}; the longest has {max(too_long)} tokens. Use "
            f"max_length={max(too_long)}, or drop the long rows with "
            f'`dataset.filter(lambda row: len(row["prompt_ids"]) + len(row["completion_ids"]) <= {max_length})`.'
        )


def _only_tokens(dataset: Any) -> Any:
    """Spares a `datasets.Dataset` the decoding of columns that are not looked at."""
    return dataset.select_columns(list(TOKENIZED_COLUMNS)) if hasattr(dataset, "select_columns") else dataset


__all__ = ["TOKENIZED_COLUMNS", "prepare_dataset", "tokenize_row"]
