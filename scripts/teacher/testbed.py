# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Data sets of conversations about counting things, and what a right reply is: the long testbed."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from hf_dparallel.data.rewards import numeric_answer_reward

from .conversations import MAX_STEPS, SMALL_TALK, Conversation, generate_conversations, last_words
from .solutions import is_whole


if TYPE_CHECKING:
    from datasets import Dataset


def conversation_dataset(
    num_rows: int,
    seed: int,
    split: str = "train",
    kind: str = "problem",
    steps: Sequence[int] = range(1, MAX_STEPS + 1),
) -> "Dataset":
    """Makes a dataset with the columns `prompt` (messages) and `answer` (the number, or the whole reply).

    The arguments are those of [`generate_conversations`], with one kind of conversation.
    """
    return as_dataset(islice(generate_conversations(seed, split, {kind: 1.0}, steps), num_rows))


def as_dataset(conversations: Iterable[Conversation]) -> "Dataset":
    """Makes a dataset of conversations with the same columns."""
    from datasets import Dataset

    conversations = list(conversations)
    return Dataset.from_dict(
        {
            "prompt": [list(conversation.messages) for conversation in conversations],
            "answer": [last_words(conversation) for conversation in conversations],
        }
    )


def reply_reward(completions: list[Any], answer: list[str], **kwargs) -> list[float | None]:
    """Gives 1.0 for a whole reply that ends with the right number or, if `answer` is a text, with it; else 0.0."""
    texts = [completion if isinstance(completion, str) else completion[-1]["content"] for completion in completions]
    numbers = numeric_answer_reward(texts, answer)
    return [
        float(is_whole(text, SMALL_TALK) and (number == 1.0 if reference.isdigit() else _ends_with(text, reference)))
        for text, reference, number in zip(texts, answer, numbers, strict=True)
    ]


def _ends_with(text: str, end: str) -> bool:
    """Compares without spaces, as marks are decoded without one."""
    return "".join(text.split()).endswith("".join(end.split()))
