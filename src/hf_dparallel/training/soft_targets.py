# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Learning from the distribution of the teacher, which is the student without its adapter.

Tokens that the teacher decides late are hardly known in the state that the student sees, and the one that it came to
in the end is a draw among several. Of them the student learns how likely each is (TAD,
https://huggingface.co/papers/2605.09536); a teacher temperature below 1 sharpens that (SPEED).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..generation.answerer import evaluation_mode
from .losses import IGNORE_INDEX, TokenTerms
from .student import base_model


if TYPE_CHECKING:
    from peft import PeftModel


class SoftTargets:
    """The terms of the loss, with the divergence from the teacher in place of the cross-entropy of late tokens.

    Of the teacher the states before its head are kept. The head runs on as many of them at a time as the student's
    does, so that the logits in memory are bounded. It is called as [`token_terms`] is, but with the `numbers` of the
    scored tokens instead of their labels.

    Args:
        student ([`~peft.PeftModel`]): the student, which is the teacher when its adapter is switched off.
        forward (`nn.Module`): the same, as it is wrapped for several processes.
        inputs (`dict[str, Any]`): arguments of the forward pass, in which masked tokens are masks and no guesses.
        labels (`torch.LongTensor` of shape `(rows, length)`): -100 where nothing is scored.
        late (`torch.BoolTensor` of shape `(rows, length)`): the scored tokens that are learned so.
        temperature (`float`): of the teacher.
        function (`Callable`): [`token_terms`] with its settings.
    """

    def __init__(
        self,
        student: "PeftModel",
        forward: nn.Module,
        inputs: dict[str, Any],
        labels: torch.LongTensor,
        late: torch.BoolTensor,
        temperature: float,
        function: Callable[[torch.Tensor, torch.LongTensor], TokenTerms],
    ):
        self.student = student
        self.temperature = temperature
        self.function = function
        scored = labels != IGNORE_INDEX
        self.targets, self.is_late = labels[scored], late[scored]
        numbers = torch.arange(len(self.targets), device=labels.device)
        self.numbers = torch.zeros_like(labels).masked_scatter(scored, numbers)
        with torch.no_grad(), evaluation_mode(forward), student.disable_adapter():
            self.teacher_logits = base_model(student).lazy_logits(inputs, late, forward=forward)
        self.state_of = self.is_late.cumsum(dim=0) - 1

    def __call__(self, logits: torch.Tensor, numbers: torch.LongTensor) -> TokenTerms:
        numbers = numbers.to(self.targets.device)
        terms = self.function(logits, self.targets[numbers].to(logits.device))
        late = self.is_late[numbers].nonzero()[:, 0]
        places = self.state_of[numbers[late]]
        late = late.to(logits.device)
        cross_entropy = terms.cross_entropy.index_copy(0, late, self._divergence(logits[late], places))
        return terms._replace(cross_entropy=cross_entropy)

    def _divergence(self, logits: torch.Tensor, places: torch.LongTensor) -> torch.Tensor:
        """KL(teacher || student) in nats, `(tokens,)`, for the student's logits and the places of the states."""
        with torch.no_grad(), self.student.disable_adapter():
            teacher = self.teacher_logits.at(places, like=logits).float()
            target = torch.log_softmax(teacher / self.temperature, dim=-1)
        log_probs = logits.float().log_softmax(dim=-1)
        return nn.functional.kl_div(log_probs, target, reduction="none", log_target=True).sum(dim=-1)


__all__ = ["SoftTargets"]
