# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Training data for certainty-forcing distillation: tokenized if necessary, and checked before training."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Subset
from transformers import PreTrainedTokenizerBase
from transformers.trainer_utils import has_length
from transformers.utils import logging

from .chats import check_is_written, encode_answer
from .messages import LEARNING_COLUMNS, Message, check_is_learned
from .prompts import Example, encode_prompt, errors_of_row, plain_rows, read_example, template_arguments


if TYPE_CHECKING:
    import datasets

logger = logging.get_logger(__name__)

TOKENIZED_COLUMNS = ("prompt_ids", "completion_ids")
TRAINING_COLUMNS = (*TOKENIZED_COLUMNS, "commit_step")


def prepare_dataset(
    dataset: Any,
    name: str,
    processing_class: PreTrainedTokenizerBase | None,
    *,
    eos_token_id: int | None = None,
    chat_template_kwargs: dict[str, Any] | None = None,
    max_length: int | None = None,
    check_row: Callable[[dict[str, Any]], Any] | None = None,
) -> Any:
    """Returns `dataset` with the columns `prompt_ids` and `completion_ids`, and checks its rows.

    A dataset that has these columns is not changed. All others are tokenized by [`tokenize_row`]; they must be a
    [`~datasets.Dataset`]. Errors give the `name` of the dataset and the number of the row. Rows whose prompt and
    completion have more than `max_length` tokens together are left out, with a warning. `check_row` raises a
    `ValueError` for a row that cannot be trained on.
    """
    dataset = plain_rows(dataset)
    if not has_length(dataset):
        raise ValueError(
            f"`{name}` must have a length, got {type(dataset).__name__}: epochs and resumed runs count rows. Read "
            "streamed data into a `datasets.Dataset`."
        )
    if not len(dataset):
        raise ValueError(f"`{name}` has 0 rows: did `filter_trajectories` drop everything? Lower its `min_reward`.")

    first = next(iter(dataset))
    if not isinstance(first, Mapping):
        raise ValueError(f"`{name}` must have rows, got a {type(dataset).__name__} of {first!r}. Use one split of it.")
    if not first.keys() >= set(TOKENIZED_COLUMNS):
        dataset = _tokenized(dataset, name, processing_class, eos_token_id, chat_template_kwargs)

    kept, longest = _fitting_rows(dataset, name, max_length, check_row)
    if not kept:
        raise ValueError(f"All rows of `{name}` are longer than max_length={max_length}. Raise it to {longest}.")
    if len(kept) == len(dataset):
        return dataset

    logger.warning(
        f"{len(dataset) - len(kept)} of {len(dataset)} rows of `{name}` are left out: they are longer than "
        f"max_length={max_length}. The longest has {longest} tokens."
    )
    if hasattr(dataset, "select"):
        return dataset.select(kept)
    return Subset(dataset, kept)


def _tokenized(
    dataset: Any,
    name: str,
    processing_class: PreTrainedTokenizerBase | None,
    eos_token_id: int | None,
    chat_template_kwargs: dict[str, Any] | None,
) -> "datasets.Dataset":
    """Returns a dataset with the columns that [`tokenize_row`] makes of each row."""
    if processing_class is None or not hasattr(dataset, "map"):
        raise ValueError(
            f"`{name}` has no `prompt_ids` and `completion_ids`. To tokenize it, pass a `datasets.Dataset` and "
            "`processing_class=AutoTokenizer.from_pretrained(...)`."
        )

    features = getattr(dataset, "features", None)

    def tokenize(row: dict[str, Any], index: int) -> dict[str, list[int]]:
        with errors_of_row(index, name):
            return tokenize_row(row, processing_class, eos_token_id, chat_template_kwargs, features)

    return dataset.map(tokenize, with_indices=True)


def _fitting_rows(
    dataset: Any, name: str, max_length: int | None, check_row: Callable[[dict[str, Any]], Any] | None
) -> tuple[list[int], int]:
    """Returns the numbers of the rows of at most `max_length` tokens, and the length of the longest row.

    Raises a `ValueError` for a row that cannot be trained on, or that is marked as one that is not to be.
    """
    columns = getattr(dataset, "column_names", None) or ()
    # Reading other columns would only take time.
    known = [column for column in (*TRAINING_COLUMNS, *LEARNING_COLUMNS) if column in columns]
    kept = []
    longest = 0
    for index, row in enumerate(dataset.select_columns(known) if known else dataset):
        with errors_of_row(index, name):
            check_is_learned(row, "It", LEARNING_COLUMNS)
            length = len(read_ids(row, "prompt_ids")) + len(read_ids(row, "completion_ids"))
            longest = max(longest, length)
            if max_length is not None and length > max_length:
                continue
            kept.append(index)
            if check_row is not None:
                check_row(row)
    return kept, longest


def tokenize_row(
    row: dict[str, Any],
    processing_class: PreTrainedTokenizerBase,
    eos_token_id: int | None = None,
    chat_template_kwargs: dict[str, Any] | None = None,
    features: Mapping[str, Any] | None = None,
) -> dict[str, list[int]]:
    """Returns `prompt_ids` and `completion_ids` of a row in one of the forms of [`read_example`].

    Messages go through the chat template, and the prompt has the generation prompt, as at inference. The completion
    ends with its first EOS token (`eos_token_id`, by default the tokenizer's), which is added if it has none.
    `features` are those of the dataset.
    """
    if eos_token_id is None:
        eos_token_id = processing_class.eos_token_id
    if eos_token_id is None:
        raise ValueError("`processing_class` has no EOS token to end a completion with. Set `tokenizer.eos_token`.")

    example = read_example(row, features)
    answer = _answer_of(example)
    if isinstance(answer, str):
        text = answer
        prompt_ids = encode_prompt(processing_class, example)
        completion_ids = processing_class(text, add_special_tokens=False)["input_ids"]
    else:
        text = answer["content"]
        prompt: Any = example.prompt
        arguments = template_arguments(example, chat_template_kwargs)
        check_is_written(processing_class, [*prompt, answer], add_generation_prompt=False, **arguments)
        prompt_ids, completion_ids = encode_answer(processing_class, prompt, answer, **arguments)

    eos_token = processing_class.decode([eos_token_id])
    rest = text.partition(eos_token)[2] if eos_token else ""
    if rest.strip():
        raise ValueError(f"`completion` goes on after its end token {eos_token!r}: {rest[:60]!r}. Remove one of them.")

    # Decoding stops at EOS, but some templates continue with a line break.
    end = [*completion_ids, eos_token_id].index(eos_token_id)
    return {"prompt_ids": prompt_ids, "completion_ids": [*completion_ids[:end], eos_token_id]}


def _answer_of(example: Example) -> str | Message:
    """Returns the completion of a row, a text or a message. Raises a `ValueError` if it cannot be learned."""
    prompt, completion = example.prompt, example.completion
    if completion is None:
        raise ValueError(
            "It has a prompt and no `completion`, and `messages` must end with a message of the assistant. If these "
            "are prompts, let the teacher answer them first: `hf-dparallel trajectories`."
        )
    if isinstance(completion, str) and not completion.strip():
        raise ValueError("`completion` must not be blank. Drop such rows.")
    if isinstance(prompt, str) != isinstance(completion, str):
        raise ValueError("`prompt` and `completion` must both be texts, or both lists of messages.")
    if isinstance(completion, str):
        return completion

    roles = [message["role"] for message in completion]
    if roles != ["assistant"]:
        raise ValueError(
            f"`completion` must be one message of the assistant, got messages of {roles}. Move the messages before "
            "the last answer into `prompt`, and drop the messages after it."
        )
    check_is_learned(completion[0], "The answer")
    return completion[0]


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
