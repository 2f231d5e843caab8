# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The table of commit rules, and their helpers. A rule is one function, with its setting above it, in rules/.

A rule gets the prediction of a pass, `masked` (which of its tokens may be committed, `(rows, tokens)`) and the value
of its setting, and returns the tokens to commit, `(rows, tokens)`. Every rule commits at least one masked token of
each row that has one, the most certain or the first, so that decoding always ends.
"""

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from .settings import SETTINGS, Setting


if TYPE_CHECKING:
    import torch

    from .certainty import TokenPrediction

# By their names, because importing torch takes seconds.
Tensor: TypeAlias = "torch.Tensor"
Prediction: TypeAlias = "TokenPrediction"
# By its setting, each commit rule.
RULES: dict[str, Any] = {}
# About the least number of float32, which is still more than the infinite one of a token that may not be committed.
_LEAST = -3e38


def commit_rule(name: str, type: type, help: str, *, options: Iterable[Setting] = (), **fields: Any) -> Callable:
    """Registers a commit rule under the setting `name`, which configurations, commands and docs then know.

    The decorated function is called as `function(prediction, masked, value)`. A rule that must remember something
    between passes is a class instead, made as `cls(config, canvas)` for each decoding and called as `rule(prediction,
    masked)`.

    Args:
        name, type, help, fields: the setting, see [`Setting`].
        options: further settings of the rule.
    """

    def register(function: Any) -> Any:
        RULES[name] = function
        SETTINGS[name] = Setting(name, "rule", type, help, **fields)
        SETTINGS.update({option.name: option for option in options})
        return function

    return register


def make_rule(config: Any, canvas: Any) -> Callable:
    """Returns the rule of a resolved configuration, as a function of prediction and masked tokens."""
    name = config.commit_rule()
    if name is None:
        return most_confident

    rule = RULES[name]
    value = getattr(config, name)
    rule_with_memory = rule(config, canvas) if isinstance(rule, type) else None

    def choose_commits(prediction: Prediction, masked: Tensor) -> Tensor:
        if rule_with_memory is not None:
            commits = rule_with_memory(prediction, masked)
        else:
            commits = rule(prediction, masked, value)

        if config.max_active_blocks > 1:
            commits = _in_first_block_too(commits, canvas, prediction, masked)
        if config.min_commits > 1:
            count = masked.new_full((len(masked),), config.min_commits, dtype=prediction.columns.dtype)
            commits = commits | commit_by_count(prediction.confidence, masked, count)
        return commits

    return choose_commits


def _in_first_block_too(commits: Tensor, canvas: Any, prediction: Prediction, masked: Tensor) -> Tensor:
    """Commits the most certain token of the first open block, too, if the rule commits none there (d3LLM)."""
    of_first = masked & (canvas.block.gather(1, prediction.columns) == canvas.open_from[:, None])
    has_none = ~(of_first & commits).any(dim=-1, keepdim=True)
    best = of_first & most_certain(-prediction.entropy, of_first)
    return commits | (best & has_none)


def most_certain(certainty: Tensor, masked: Tensor) -> Tensor:
    """Returns the masked token of the greatest certainty in each row, as a mask `(rows, tokens)`."""
    best = certainty.clamp(min=_LEAST).masked_fill(~masked, -math.inf).argmax(dim=-1, keepdim=True)
    return masked.new_zeros(masked.shape).scatter_(-1, best, True)


def most_confident(prediction: Prediction, masked: Tensor) -> Tensor:
    """Commits one token in each pass. Used if no rule is set."""
    return masked & most_certain(prediction.confidence, masked)


def commit_by_count(confidence: Tensor, masked: Tensor, count: Tensor) -> Tensor:
    """Commits the `count` most confident tokens of each row, `count` of shape `(rows,)`."""
    by_confidence = confidence.masked_fill(~masked, -math.inf).argsort(dim=-1, descending=True, stable=True)
    # The place of each token in that order, from 0.
    rank = by_confidence.argsort(dim=-1)
    return masked & (rank < count[:, None])
