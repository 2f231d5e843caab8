# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Reward functions with TRL's signature, which keep trajectories with correct answers."""

import inspect
import math
import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

from ..environment import require
from .prompts import has_texts, read_prompts
from .texts import decode_without
from .thoughts import ThoughtMarkers, hidden_tokens, split_thought


if TYPE_CHECKING:
    from datasets import Dataset

RewardFunction = Callable[..., list[float | None]]
RewardFunctions = RewardFunction | list[RewardFunction]
# The column with the reference answer that each reward function reads.
REFERENCE_COLUMNS = {"numeric": "answer", "math": "solution"}

# Other spellings of numbers, and the spelling that `_NUMBER` reads. LaTeX writes commas without a space as "{,}". A
# space may separate thousands. At the beginning of an expression, a space may follow a minus.
_SPELLINGS = {
    "[\N{MINUS SIGN}\N{EN DASH}\N{FIGURE DASH}\N{NON-BREAKING HYPHEN}\N{FULLWIDTH HYPHEN-MINUS}]": "-",
    r"\\[dt]?frac\{(\d+)\}\{(\d+)\}": r"\1/\2",
    r"(?<=\d)(?:\{,\}|\\[,!]|,\\!|[\u00a0\u2009\u202f ])(?=\d{3}(?!\d))": ",",
    r"(\A|[=:(]) ?- (?=[\d.])": r"\1-",
}
# A hyphen after a word, a number or a bracket is no sign ("10-15"). Commas separate thousands or numbers ("1,2").
_NUMBER = re.compile(
    r"(?P<number>(?:(?<![\w.)%])-)?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])\.\d+)"
    r"(?:[eE][+-]?\d{1,4}(?!\w))?)(?: ?/ ?(?P<divisor>\d+))?"
)
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
# A remark at the end: "42 (see step 3)".
_ASIDE = re.compile(r"\s\((?=[^()]*[a-zA-Z])[^()]*\)[.\s]*\Z")
_DECIMAL_COMMA = re.compile(r"(?<![\d.,])-?\d+,\d+\Z")


def numeric_answer_reward(completions: list[Any], answer: list[Any], **kwargs) -> list[float | None]:
    r"""
    Returns 1.0 for each completion whose last number equals the last number of `answer`, else 0.0.

    Reads answers such as GSM8K's (`"... #### 1,250"`), fractions, and signs and thousands as people and LaTeX write
    them. A number in `\boxed{}` takes precedence. A closing remark in parentheses is ignored unless it has the only
    number. For mathematics beyond single numbers use `trl.rewards.accuracy_reward`.

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
    rewards: list[float | None] = []
    for completion, reference in zip(completions, answer, strict=True):
        text = completion
        if not isinstance(completion, str):
            text = "".join(message["content"] for message in completion)
        expected = _last_number(str(reference))
        if not expected:
            rewards.append(None)
            continue

        is_right = not expected.isdisjoint(_last_number(text))
        rewards.append(float(is_right))
    return rewards


def get_reward(name: str, dataset: "Dataset") -> RewardFunction:
    """Returns the reward function `name`, or raises an error if it cannot judge answers to this dataset.

    To "none" all answers are right.
    """
    if name == "none":
        return lambda completions, **_: [1.0] * len(completions)
    if name == "numeric":
        return numeric_answer_reward

    require("reward=math", "math_verify")
    if has_texts(dataset):
        raise ValueError("`reward=math` judges chats, but the prompts are plain text. Add --prompt_column prompt.")
    from trl.rewards import accuracy_reward

    return accuracy_reward


def score_completions(
    dataset: "Dataset",
    tokenizer: PreTrainedTokenizerBase,
    reward_funcs: RewardFunctions,
    markers: ThoughtMarkers | None = None,
) -> list[float | None]:
    """Returns the lowest reward of each row over all functions, or `None` if none of them returns a reward.

    Calls the functions as TRL does: with `prompts`, `completions` and all other columns (such as `completion_ids`) as
    keyword arguments. Completions are texts if the prompts are, else lists of one assistant message, without the
    thought before the answer. NaN counts as `None`.
    """
    check_reward_columns(reward_funcs, dataset.column_names)
    columns = {name: dataset[name][:] for name in dataset.column_names if name != "prompt"}
    prompts = read_prompts(dataset)

    without_thought = hidden_tokens(tokenizer, markers)
    of_plain_text = hidden_tokens(tokenizer)
    completions: list[Any] = []
    for prompt, ids in zip(prompts, columns["completion_ids"], strict=True):
        if isinstance(prompt, str):
            completions.append(decode_without(tokenizer, ids, of_plain_text))
            continue

        text = decode_without(tokenizer, ids, without_thought)
        completions.append([{"role": "assistant", "content": split_thought(markers, text)[1]}])
    columns["prompts"] = prompts
    columns["completions"] = completions

    by_function = []
    for name, function in _named(reward_funcs):
        returned = function(**columns)
        rewards = list(returned) if isinstance(returned, Iterable) else []
        if len(rewards) != len(prompts):
            got = f"{len(rewards)} of them" if isinstance(returned, Iterable) else type(returned).__name__
            raise ValueError(
                f"The reward function `{name}` must return a reward, or None, for each of the {len(prompts)} "
                f"completions, got {got}."
            )
        by_function.append(rewards)
    return [_lowest(of_row) for of_row in zip(*by_function, strict=True)]


def _lowest(rewards: Sequence[float | None]) -> float | None:
    """Returns the lowest reward; `None` if there is none. NaN says nothing, either."""
    given = [float(reward) for reward in rewards if reward is not None and not math.isnan(reward)]
    return min(given, default=None)


def check_reward_columns(reward_funcs: RewardFunctions, column_names: Sequence[str]) -> None:
    """Raises a `ValueError` if a reward function cannot be called with the columns of a dataset."""
    given = sorted({"prompts", "completions", "completion_ids", *column_names} - {"prompt"})
    for name, function in _named(reward_funcs):
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            continue  # some compiled callables have none

        try:
            signature.bind(**dict.fromkeys(given))
        except TypeError as error:
            raise ValueError(
                f"The reward function `{name}` cannot be called with {given}: {error}. Rename the column that it "
                "needs (`dataset.rename_column`), and let it accept all other columns as `**kwargs`."
            ) from error


def _named(reward_funcs: RewardFunctions) -> list[tuple[str, RewardFunction]]:
    functions = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
    return [(getattr(function, "__name__", type(function).__name__), function) for function in functions]


def _last_number(text: str) -> set[Decimal]:
    """Returns the possible values of the last number of a text, or of its last `\\boxed{}`; none without a number."""
    for spelling, plain in _SPELLINGS.items():
        text = re.sub(spelling, plain, text)

    for part in (*reversed(_BOXED.findall(text)), _ASIDE.sub("", text), text):
        numbers = list(_NUMBER.finditer(part))
        if numbers:
            return _readings(numbers[-1])
    return set()


def _readings(number: re.Match) -> set[Decimal]:
    """Returns the possible values of a number: "2,5" may be the end of a list, 5, or have a decimal comma, 2.5."""
    value = Decimal(number["number"].replace(",", ""))
    if number["divisor"]:
        divisor = Decimal(number["divisor"])
        value = value / divisor if divisor else divisor
    readings = {value}

    with_comma = _DECIMAL_COMMA.search(number.string[: number.end()])
    if with_comma:
        readings.add(Decimal(with_comma[0].replace(",", ".")))
    return readings
