# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What settings of masks, of the loss and of variants have in common: checks, hooks, and help from docstrings."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hf_dparallel_rules.settings import SettingError


@dataclass
class Step:
    """A pass of the student over a batch, before it is made. A hook may change `inputs`, `labels` and `function`.

    Attributes:
        student: the model, with its adapter if it has one.
        forward: the same, as it is wrapped for several processes.
        inputs: the arguments of the pass, at first with the marks of the collator.
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
    for name, text in re.findall(r"^ {8}(\w+) \(.+\):\n((?: {12}.+\n)+)", settings.__doc__ or "", flags=re.MULTILINE):
        setting = vars(settings)["__dataclass_fields__"][name]
        setting.metadata = {**setting.metadata, "help": " ".join(text.split())}
    return settings


class Hooks:
    """Hooks of settings, which do nothing by themselves. A variant that overrides one calls `super()` in it."""

    def check(self) -> None:
        """Raises a [`SettingError`] for a setting that is out of range or has no meaning."""

    def check_model(self, model: nn.Module) -> None:
        """Raises a `ValueError` if this model cannot be trained so."""

    def before_scoring(self, step: Step) -> None:
        """May change a pass. Takes the marks that are its own out of the inputs, and only then calls `super()`."""

    def require(self, name: str, holds: bool, rule: str, remedy: str = "") -> None:
        """Raises a [`SettingError`] for the setting `name`, unless what its `rule` says holds."""
        if not holds:
            raise SettingError(name, getattr(self, name), rule, remedy)

    def refuse(self, name: str, reason: str) -> None:
        """Raises a [`SettingError`] if the setting `name` is set, which has no meaning for this `reason`."""
        value = getattr(self, name)
        self.require(name, value is None or value is False, f"has no meaning {reason}", "Leave it out.")
