# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Reward functions with TRL's signature, to keep the trajectories whose answer is right."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase


if TYPE_CHECKING:
    from datasets import Dataset

RewardFunction = Callable[..., list[float | None]]

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def numeric_answer_reward(completions: list[Any], answer: list[Any], **kwargs) -> list[float | None]:
    r"""
    1.0 where the last number of a completion is the last number of `answer`, else 0.0.

    Reads answers such as GSM8K's (`"... #### 1,250"`) and plain numbers. For mathematics beyond single numbers use
    `trl.rewards.accuracy_reward`.

    Args:
        completions (`list[str]` or `list[list[dict]]`):
            Completions, as text or as lists of chat messages.
        answer (`list`):
            The reference answers: numbers, or texts that end with one.

    Returns:
        `list[float | None]`: one reward per completion; `None` where the reference has no number to compare with.

    Example:

    ```python
    >>> from hf_dparallel import numeric_answer_reward

    >>> numeric_answer_reward(["He pays $1,250.", "It is 7.", "No idea."], answer=["#### 1250", 8, 3])
    [1.0, 0.0, 0.0]
    ```
    """
    return [
        _reward(_text(completion), str(reference)) for completion, reference in zip(completions, answer, strict=True)
    ]


def score_completions(
    dataset: "Dataset", tokenizer: PreTrainedTokenizerBase, reward_funcs: RewardFunction | list[RewardFunction]
) -> list[float | None]:
    """Returns the least reward of each row over all functions, `None` where none of them says anything.

    The functions are called as TRL calls them: with `prompts`, `completions` and every other column, `completion_ids`
    among them, as keyword arguments. Completions are texts if the prompts are, else lists of one assistant message.
    """
    functions = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
    columns = {name: dataset[name][:] for name in dataset.column_names}
    texts = tokenizer.batch_decode(columns["completion_ids"], skip_special_tokens=True)
    prompts = columns.pop("prompt", None) or columns.get("messages") or [""] * len(texts)
    conversational = bool(prompts) and not isinstance(prompts[0], str)
    completions = [[{"role": "assistant", "content": text}] if conversational else text for text in texts]
    rewards = [function(prompts=prompts, completions=completions, **columns) for function in functions]
    return [min((r for r in of_row if r is not None), default=None) for of_row in zip(*rewards, strict=True)]


def _reward(completion: str, reference: str) -> float | None:
    expected = _last_number(reference)
    return None if expected is None else float(_last_number(completion) == expected)


def _last_number(text: str) -> float | None:
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def _text(completion: str | list[dict[str, str]]) -> str:
    return completion if isinstance(completion, str) else "".join(message["content"] for message in completion)
