# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""From a dataset of prompts to token ids, and to batches of them."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase


if TYPE_CHECKING:
    from datasets import Dataset


def tokenize_prompts(dataset: "Dataset", tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Returns the token ids of the column `prompt` (texts, or lists of messages) or `messages` of a dataset.

    Texts are tokenized as they are. Messages go through the chat template, without a trailing answer.

    Raises:
        ValueError: if there are no rows, or no such column.
    """
    if len(dataset) == 0:
        raise ValueError("`dataset` has no rows, so there is nothing to answer. Check its split and its filters.")
    column = next((name for name in ("prompt", "messages") if name in dataset.column_names), None)
    if column is None:
        raise ValueError(
            f"`dataset` needs a column `prompt` (texts or lists of messages) or `messages`, it has "
            f"{dataset.column_names}. Rename one: `dataset.rename_column('question', 'prompt')`."
        )
    prompts = dataset[column][:]
    if isinstance(prompts[0], str):
        return tokenizer(prompts)["input_ids"]
    conversations = [_without_answer(messages) for messages in prompts]
    return tokenizer.apply_chat_template(conversations, add_generation_prompt=True, return_dict=True)["input_ids"]


def length_sorted_batches(rows: Sequence[int], prompt_ids: list[list[int]], batch_size: int) -> Iterator[list[int]]:
    """Yields batches of rows whose prompts are of similar length, for little padding."""
    by_length = sorted(rows, key=lambda row: len(prompt_ids[row]))
    for start in range(0, len(by_length), batch_size):
        yield by_length[start : start + batch_size]


def _without_answer(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    while messages and messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    return messages
