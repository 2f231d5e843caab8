# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Where a variant of the training can act: on its settings, on a masked row, and on a pass of the student."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..generation.settings import SettingError
from .terms import TokenTerms


if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel


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
    """A pass of the student over a batch, before it is made.

    Attributes:
        student: the model, with its adapter if it has one.
        forward: the same, as it is wrapped for several processes.
        inputs: the arguments of the pass. A hook may put others in their place.
        masked_inputs: the arguments as the collator made them: masked tokens are masks.
        scored: the tokens that have a loss, `(rows, length)`.
        marks: what the collator told besides, by name.
        mask_token_id: the mask.
        changes: functions of the terms of some scored tokens, their logits and their numbers among all scored tokens,
            each of which returns the terms that take their place.
    """

    student: "PreTrainedModel | PeftModel"
    forward: nn.Module
    inputs: dict[str, Any]
    masked_inputs: dict[str, Any]
    scored: torch.BoolTensor
    marks: dict[str, torch.Tensor]
    mask_token_id: int
    changes: list[Callable[[TokenTerms, torch.Tensor, torch.LongTensor], TokenTerms]] = field(default_factory=list)

    def changed(
        self, function: Callable[[torch.Tensor, torch.LongTensor], TokenTerms], labels: torch.LongTensor
    ) -> tuple[Callable[[torch.Tensor, torch.LongTensor], TokenTerms], torch.LongTensor]:
        """A function of logits and labels with all `changes`, and what it takes for the labels: the numbers."""
        targets = labels[self.scored]
        numbers = torch.zeros_like(labels).masked_scatter(
            self.scored, torch.arange(len(targets), device=labels.device)
        )

        def with_changes(logits: torch.Tensor, numbers: torch.LongTensor) -> TokenTerms:
            numbers = numbers.to(targets.device)
            terms = function(logits, targets[numbers].to(logits.device))
            for change in self.changes:
                terms = change(terms, logits, numbers)
            return terms

        return with_changes, numbers


class Hooks:
    """Hooks of settings, which do nothing by themselves. A variant that overrides one calls `super()` in it."""

    def check(self) -> None:
        """Raises a [`SettingError`] for a setting that is out of range or has no meaning."""

    def check_model(self, model: "PreTrainedModel | PeftModel") -> None:
        """Raises a `ValueError` if this model cannot be trained so."""

    def before_scoring(self, step: Step) -> None:
        """May change the inputs of a pass, and the terms that come of it."""

    def refuse(self, name: str, reason: str) -> None:
        """Raises a [`SettingError`] if the setting `name` is set, which has no meaning for this `reason`."""
        value = getattr(self, name)
        if value is not None and value is not False:
            raise SettingError(name, value, f"has no meaning {reason}", "Leave it out.")


__all__ = ["Hooks", "Step", "Views"]
