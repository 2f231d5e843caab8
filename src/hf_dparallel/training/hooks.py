# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What settings of masks, of the loss and of variants share: checks, hooks of variants, and help from docstrings."""

import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from inspect import cleandoc
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from hf_dparallel_rules.settings import SettingError


class Step(NamedTuple):
    """A pass of the student over a batch, before it is made. A variant may replace `inputs`, `labels` and `function`.

    Attributes:
        student: the model, with its adapter if it has one.
        forward: the same, as it is wrapped for several processes.
        inputs: the arguments of the pass.
        masked_inputs: the arguments as the collator made them: masked tokens are masks.
        scored: the tokens that have a loss, `(rows, length)`.
        labels: what `function` is told of the scored tokens, `(rows, length)`: at first the clean tokens.
        function: the [`TokenTerms`] of some scored tokens by their logits and labels.
        mask_token_id: the mask; -1 if the collator does not say.
    """

    student: Any
    forward: nn.Module
    inputs: dict[str, Any]
    masked_inputs: dict[str, Any]
    scored: torch.BoolTensor
    labels: torch.LongTensor
    function: Callable[[torch.Tensor, torch.LongTensor], Any]
    mask_token_id: int


def documented(settings: type) -> type:
    """Gives each setting of a dataclass its entry in the docstring as the help of the command line."""
    # From Python 3.13 on, docstrings have no indentation.
    text = cleandoc(settings.__doc__ or "")
    for name, entry in re.findall(r"^ {4}(\w+) \(.+\):((?:\n {8}.+)+)", text, flags=re.MULTILINE):
        setting = vars(settings)["__dataclass_fields__"][name]
        setting.metadata = {**setting.metadata, "help": " ".join(entry.split())}
    return settings


class Settings:
    """Settings that check themselves. A class of all settings inherits several kinds of them, and the variants."""

    def check(self) -> None:
        """Raises a [`SettingError`] for a setting that is out of range or has no meaning."""

    def variants(self) -> Iterator[Any]:
        """Yields the variants that are on, whose hooks are called with these settings."""
        for kind in type(self).__mro__:
            if Variant in kind.__bases__ and any(
                getattr(self, setting.name) != setting.default for setting in fields(kind)
            ):
                yield kind

    def require(self, name: str, holds: bool, rule: str, remedy: str = "") -> None:
        """Raises a [`SettingError`] for the setting `name`, unless what its `rule` says holds."""
        if not holds:
            raise SettingError(name, getattr(self, name), rule, remedy)

    def refuse(self, name: str, reason: str) -> None:
        """Raises a [`SettingError`] if the setting `name` is set, which has no meaning for this `reason`."""
        value = getattr(self, name)
        self.require(name, value is None or value is False, f"has no meaning {reason}", "Leave it out.")


class Variant(Settings):
    """Base of a variant, a dataclass of settings with these hooks. It is on if one of its settings has been changed.

    Attributes:
        mark_name (`str`): name in the batch of what it marks, a tensor `(rows,)` or of the shape of the labels.
    """

    mark_name: ClassVar[str]

    def check_student(self, model: nn.Module) -> None:
        """Raises a `ValueError` if this model cannot be trained so."""

    def needs_steps(self) -> str:
        """Returns the setting of the variant that reads the column `commit_step`, if one does."""
        return ""

    def mark(self, views: Any, generator: torch.Generator) -> Any:
        """Returns [`Views`] with a mark of rows or tokens, and others scored if need be. Masks are drawn before."""
        raise NotImplementedError

    def before_scoring(self, step: Step, mark: torch.Tensor) -> Step:
        """Returns what is made instead of a pass over a marked batch."""
        raise NotImplementedError
