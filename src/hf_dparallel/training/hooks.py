# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Where a variant of the training can act: on its settings, on a masked row, and on a pass of the student."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..generation.settings import SettingError
from .terms import TokenTerms


@dataclass
class Views:
    """The masked views of one sequence, each `(views, length)`, before they become rows of a batch.

    Attributes:
        clean: the tokens.
        masked: the masked tokens of the active blocks; what follows these blocks is masked in any case.
        scored: the tokens that have a label.
        visible: the tokens that the student sees.
        spans: the first column of each active block, and the first one after it.
        steps: the pass in which the teacher committed each token, `(length,)`; 0 if that is not read.
        marks: what the trainer is told besides, `(views,)` or `(views, length)`, by its name in the batch.
    """

    clean: torch.LongTensor
    masked: torch.BoolTensor
    scored: torch.BoolTensor
    visible: torch.BoolTensor
    spans: list[tuple[int, int]]
    steps: torch.LongTensor
    marks: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def active(self) -> torch.BoolTensor:
        """Which columns an active block has, `(length,)`."""
        active = torch.zeros_like(self.masked[0])
        for start, end in self.spans:
            active[start:end] = True
        return active


@dataclass
class Step:
    """A pass of the student over a batch, before it is made. A hook may change `inputs`, `labels` and `function`.

    Attributes:
        student: the model, with its adapter if it has one.
        forward: the same, as it is wrapped for several processes.
        inputs: the arguments of the pass.
        masked_inputs: the arguments as the collator made them: masked tokens are masks.
        scored: the tokens that have a loss, `(rows, length)`.
        labels: what `function` is told of the scored tokens, `(rows, length)`: at first the clean tokens.
        function: the terms of some scored tokens by their logits and labels.
        marks: what the collator told besides, by name.
        mask_token_id: the mask; -1 if the collator does not say.
    """

    student: Any
    forward: nn.Module
    inputs: dict[str, Any]
    masked_inputs: dict[str, Any]
    scored: torch.BoolTensor
    labels: torch.LongTensor
    function: Callable[[torch.Tensor, torch.LongTensor], TokenTerms]
    marks: dict[str, torch.Tensor]
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
        """May change the inputs of a pass, and the terms that come of it."""

    def refuse(self, name: str, reason: str) -> None:
        """Raises a [`SettingError`] if the setting `name` is set, which has no meaning for this `reason`."""
        value = getattr(self, name)
        if value is not None and value is not False:
            raise SettingError(name, value, f"has no meaning {reason}", "Leave it out.")
