# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Training data for certainty-forcing distillation: tokenized if necessary, and checked before training."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from jinja2 import TemplateError
from torch.utils.data import Subset
from transformers import PreTrainedTokenizerBase
from transformers.trainer_utils import has_length
from transformers.utils import logging

from .prompts import Message, encode_chat, encode_prompt, errors_of_row, plain_rows, read_example, render_chat


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
    if not next(iter(dataset)).keys() >= set(TOKENIZED_COLUMNS):
        if processing_class is None or not hasattr(dataset, "map"):
            raise ValueError(
                f"`{name}` has no `prompt_ids` and `completion_ids`. To tokenize it, pass a `datasets.Dataset` and "
                "`processing_class=AutoTokenizer.from_pretrained(...)`."
            )

        def tokenize(row: dict[str, Any], index: int) -> dict[str, list[int]]:
            with errors_of_row(index, name):
                return tokenize_row(row, processing_class, eos_token_id, chat_template_kwargs)

        dataset = dataset.map(tokenize, with_indices=True)
    # Reading other columns would only take time.
    known = [column for column in TRAINING_COLUMNS if column in getattr(dataset, "column_names", ())]
    kept, longest = [], 0
    for index, row in enumerate(dataset.select_columns(known) if known else dataset):
        with errors_of_row(index, name):
            length = sum(len(read_ids(row, column)) for column in TOKENIZED_COLUMNS)
            longest = max(longest, length)
            if max_length is None or length <= max_length:
                kept.append(index)
                if check_row is not None:
                    check_row(row)
    if not kept:
        raise ValueError(f"All rows of `{name}` are longer than max_length={max_length}. Raise it to {longest}.")
    if num_long := len(dataset) - len(kept):
        logger.warning(
            f"{num_long} of {len(dataset)} rows of `{name}` are left out: they are longer than "
            f"max_length={max_length}. The longest has {longest} tokens."
        )
        return dataset.select(kept) if hasattr(dataset, "select") else Subset(dataset, kept)
    return dataset


def tokenize_row(
    row: dict[str, Any],
    processing_class: PreTrainedTokenizerBase,
    eos_token_id: int | None = None,
    chat_template_kwargs: dict[str, Any] | None = None,
) -> dict[str, list[int]]:
    """Returns `prompt_ids` and `completion_ids` of a row in one of the forms of [`read_example`].

    Messages go through the chat template, and the prompt has the generation prompt, as at inference. The completion
    ends with its first EOS token (`eos_token_id`, by default the tokenizer's), which is added if it has none.
    """
    example = read_example(row)
    if example.completion is None:
        raise ValueError(
            "It has a prompt and no `completion`, and `messages` must end with a message of the assistant. If these "
            "are prompts, let the teacher answer them first: `hf-dparallel trajectories`."
        )
    if isinstance(example.completion, str) and not example.completion.strip():
        raise ValueError("`completion` must not be blank. Drop such rows.")
    if isinstance(example.prompt, str) != isinstance(example.completion, str):
        raise ValueError("`prompt` and `completion` must both be texts, or both lists of messages.")
    prompt_ids = encode_prompt(processing_class, example, chat_template_kwargs)
    if isinstance(example.prompt, str):
        completion_ids = processing_class(example.completion, add_special_tokens=False)["input_ids"]
    else:
        arguments = {**(chat_template_kwargs or {}), **example.chat_template_kwargs, "tools": example.tools}
        completion_ids = _encode_answer(processing_class, example.prompt, list(example.completion), arguments)
    eos_token_id = processing_class.eos_token_id if eos_token_id is None else eos_token_id
    if eos_token_id is None:
        raise ValueError("`processing_class` has no EOS token to end a completion with. Set `tokenizer.eos_token`.")
    answer, eos_token = example.completion, processing_class.decode([eos_token_id])
    answer = answer if isinstance(answer, str) else answer[0]["content"]
    if eos_token and (rest := answer.partition(eos_token)[2]).strip():
        raise ValueError(f"`completion` goes on after its end token {eos_token!r}: {rest[:60]!r}. Remove one of them.")
    # Decoding stops at EOS, but some templates continue with a line break.
    end = [*completion_ids, eos_token_id].index(eos_token_id)
    return {"prompt_ids": prompt_ids, "completion_ids": [*completion_ids[:end], eos_token_id]}


def _encode_answer(
    tokenizer: PreTrainedTokenizerBase, prompt: list[Message], completion: list[Any], arguments: dict[str, Any]
) -> list[int]:
    """Returns the token ids that the chat template writes for the answer to a prompt."""
    roles = [message["role"] for message in completion]
    if roles != ["assistant"]:
        raise ValueError(
            f"`completion` must be one message of the assistant, got messages of {roles}. Move the messages before "
            "the last answer into `prompt`, and drop the messages after it."
        )
    text = render_chat(tokenizer, [*prompt, *completion], add_generation_prompt=False, **arguments)
    text = text.removesuffix(_closing(tokenizer, prompt, arguments))
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    prompt_ids = encode_chat(tokenizer, prompt, **arguments)
    if ids[: len(prompt_ids)] != prompt_ids:
        raise ValueError(
            "The chat template renders the prompt differently when a completion follows, so the completion cannot be "
            "separated from it. Tokenize the rows yourself and pass `prompt_ids` and `completion_ids`."
        )
    return ids[len(prompt_ids) :]


def _closing(tokenizer: PreTrainedTokenizerBase, prompt: list[Message], arguments: dict[str, Any]) -> str:
    """Returns the generation prompt of a template that writes it even after an answer, as LLaDA's does."""
    without, asked = (render_chat(tokenizer, prompt, add_generation_prompt=x, **arguments) for x in (False, True))
    if without == asked:
        with contextlib.suppress(TemplateError):  # a template that raises without a message writes nothing after one
            # Before the first message it may also write BOS.
            return tokenizer.apply_chat_template([[]], tokenize=False)[0].removeprefix(tokenizer.bos_token or "")
    return ""


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
