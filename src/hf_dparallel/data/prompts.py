# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Tokenizes the prompts of a dataset."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase


if TYPE_CHECKING:
    from datasets import Dataset


def tokenize_prompts(
    dataset: "Dataset", tokenizer: PreTrainedTokenizerBase, mask_token_id: int | None = None
) -> list[list[int]]:
    """Returns the token ids of the column `prompt` (texts, or lists of messages) or `messages` of a dataset.

    Texts are tokenized as they are. Messages go through the chat template, without a trailing answer. Raises a
    `ValueError` for empty prompts and prompts with `mask_token_id`, if the model has one.
    """
    if len(dataset) == 0:
        raise ValueError("`dataset` has no rows. Check its split and its filters.")
    column = next((name for name in ("prompt", "messages") if name in dataset.column_names), None)
    if column is None:
        raise ValueError(
            f"`dataset` must have a column `prompt` (texts or lists of messages) or `messages`, got "
            f"{dataset.column_names}. Rename one: `dataset.rename_column('question', 'prompt')`."
        )
    prompts = [prompt if isinstance(prompt, str) else _without_answer(prompt or []) for prompt in dataset[column][:]]
    # For a text, only its token ids tell whether it is empty.
    _check_not_empty([[prompt] if isinstance(prompt, str) else prompt for prompt in prompts], column)
    if isinstance(prompts[0], str):
        prompt_ids = tokenizer(prompts)["input_ids"]
    else:
        prompt_ids = tokenizer.apply_chat_template(prompts, add_generation_prompt=True, return_dict=True)["input_ids"]
    _check_not_empty(prompt_ids, column)
    for row, ids in enumerate(prompt_ids):
        if mask_token_id in ids:
            raise ValueError(
                f"The column `{column}` contains the mask token ({mask_token_id}) in row {row}, but prompts are not "
                "decoded. Remove the mask tokens from the prompts."
            )
    return prompt_ids


def has_texts(dataset: "Dataset") -> bool:
    """Tells whether the prompts are plain texts, which do not go through a chat template."""
    return "string" in getattr(dataset.features.get("prompt"), "dtype", "")


def check_new_columns(dataset: "Dataset", new: Sequence[str]) -> None:
    """Raises a `ValueError` if a dataset already has one of the `new` columns."""
    if not hasattr(dataset, "column_names"):
        raise TypeError(
            f"`dataset` must be a `datasets.Dataset`, got {type(dataset).__name__}. Use `datasets.Dataset.from_list`."
        )
    taken = [name for name in new if name in dataset.column_names]
    if taken:
        raise ValueError(
            f"`dataset` already has the columns {taken}, which the answers would overwrite. Remove them: "
            f"`dataset.remove_columns({taken})`."
        )


def _without_answer(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    while messages and messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    return messages


def _check_not_empty(prompts: Sequence[Sequence[Any]], column: str) -> None:
    empty = [row for row, prompt in enumerate(prompts) if not prompt]
    if empty:
        raise ValueError(
            f"The column `{column}` has an empty prompt in row {empty[0]} ({len(empty)} of {len(prompts)} rows). Drop "
            "such rows with `dataset.filter`."
        )
