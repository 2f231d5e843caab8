# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Finds the fastest settings that keep the accuracy on one half of the prompts, and confirms them on the other.

The accuracy is that of a reference: for a student its teacher, at one token per pass.

Settings that the first half has put in order are tested on the second until one fails. So the chance to accept
settings that lose more than the tolerance is at most one minus the confidence: fixed sequence testing along a Pareto
front ([Learn then Test](https://huggingface.co/papers/2110.01052),
[Pareto Testing](https://huggingface.co/papers/2210.07913)).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from hf_dparallel_rules.settings import SETTINGS, SettingError, suggest

from .decoding import Evaluation
from .intervals import accuracy_drop_p_value


# Decodes prompts of one of the two splits, "calibration" and "confirmation", with some settings.
Evaluate = Callable[[str, Mapping[str, Any]], Evaluation]


@dataclass
class Trial:
    """Settings, and their accuracy beside that of the reference on each split where they were tried."""

    settings: dict[str, Any]
    # Mean number of passes on the calibration split.
    nfe: float
    # By split.
    reference_accuracy: dict[str, float] = field(default_factory=dict)
    accuracy: dict[str, float] = field(default_factory=dict)
    # By split, the [`accuracy_drop_p_value`].
    p_value: dict[str, float] = field(default_factory=dict)

    def accuracy_drop(self, split: str) -> float:
        """Returns how much of the reference's accuracy is lost; below 0 if some is gained."""
        return self.reference_accuracy[split] - self.accuracy[split]


def calibrate(
    evaluate: Evaluate,
    candidates: Sequence[Mapping[str, Any]],
    reference: Mapping[str, Any],
    max_accuracy_drop: float = 0.01,
    confidence: float = 0.9,
) -> tuple[Trial | None, list[Trial]]:
    """Finds the candidates with the fewest passes that lose at most `max_accuracy_drop` of the reference's accuracy.

    The drop counts on all prompts of this kind (0.01 is one point); `confidence` is the probability that the promise
    is kept, over samples of prompts. Returns the best settings, `None` if none could be confirmed, and all trials.

    `evaluate` gets `reference` to decode with the reference. For a student with an adapter, that is the base without
    it: another model, if `evaluate` says so.
    """
    expected = evaluate("calibration", reference).is_correct
    trials = []
    for settings in candidates:
        answers = evaluate("calibration", settings)
        trial = Trial(settings=dict(settings), nfe=answers.metrics()["nfe"])
        _compare(trial, "calibration", expected, answers.is_correct, max_accuracy_drop)
        trials.append(trial)

    # The surest first, each faster than the last.
    promising: list[Trial] = []
    for trial in sorted(trials, key=lambda trial: (trial.p_value["calibration"], trial.nfe)):
        is_faster = not promising or trial.nfe < promising[-1].nfe
        if is_faster and trial.accuracy_drop("calibration") <= max_accuracy_drop:
            promising.append(trial)
    if not promising:
        return None, trials

    best = None
    expected = evaluate("confirmation", reference).is_correct
    for trial in promising:
        is_correct = evaluate("confirmation", trial.settings).is_correct
        _compare(trial, "confirmation", expected, is_correct, max_accuracy_drop)
        if trial.p_value["confirmation"] > 1 - confidence:
            break
        best = trial
    return best, trials


def _compare(trial: Trial, split: str, expected: list[bool], is_correct: list[bool], max_accuracy_drop: float) -> None:
    """Notes in a trial how it did beside the reference."""
    trial.reference_accuracy[split] = fmean(expected)
    trial.accuracy[split] = fmean(is_correct)
    trial.p_value[split] = accuracy_drop_p_value(expected, is_correct, max_accuracy_drop)


def check_num_prompts(num_prompts: int, max_accuracy_drop: float, confidence: float) -> None:
    """Raises a `ValueError` if so few prompts cannot confirm anything, even settings that change no answer."""
    # For such settings, `accuracy_drop_p_value` is `(1 - max_accuracy_drop) ** num_prompts`.
    needed = math.ceil(math.log(1 - confidence) / math.log(1 - max_accuracy_drop))
    if num_prompts < needed:
        raise ValueError(
            f"Too few prompts. Settings are confirmed on half of them, here {num_prompts}. Fewer than {needed} cannot "
            f"show that settings lose at most `max_accuracy_drop={max_accuracy_drop}` with `confidence={confidence}`, "
            f"even if no answer changes. Give {2 * needed} prompts or more, or allow a larger drop."
        )


def parse_sweep(text: str) -> tuple[str, list[Any]]:
    """Reads the name and the values of `NAME=VALUE,VALUE,...`."""
    name, _, values = text.partition("=")
    types = {one.name: one.type for one in SETTINGS.values() if one.type in (int, float) and one.has_flag}
    if name not in types:
        raise SettingError(
            "sweep", text, rule=f"must start with one of {', '.join(types)}, and =", remedy=suggest(name, types)
        )
    try:
        return name, [types[name](value) for value in values.split(",")]
    except ValueError as error:
        numbers = "whole numbers" if types[name] is int else "numbers"
        raise SettingError("sweep", text, rule=f"must be of the form {name}=VALUE,VALUE,... with {numbers}") from error
