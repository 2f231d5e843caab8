# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Learning from the distribution of the teacher, which is the student without its adapter."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...generation.answerer import evaluation_mode
from ...generation.settings import SettingError
from ..hooks import Step, Views, documented
from ..masking import Masking, check_count
from ..objective import Objective
from ..student import base_model
from ..terms import TokenTerms


# Ways to begin an adapter that leave the weights of the base model as they are.
_HARMLESS_STARTS = ("gaussian", "eva", "orthogonal")


@documented
@dataclass(kw_only=True)
class LateTokens(Masking):
    r"""
    Which tokens have soft targets: the teacher's late tokens are one draw of several, so the student learns their
    distribution (TAD, https://huggingface.co/papers/2605.09536, whose teacher also sees the reference answer).

    With `s_i` the pass in which the teacher committed token `i`, `s` the first such pass among the masked tokens of
    the block, `z` the logits of the teacher and `t` its temperature,

        L_consistency = mean over masked i of  -log p(y_i)                      if s_i < s + near_steps
                                               KL(softmax(z_i / t) || p_i)      else

    Parameters:
        near_steps (`int`, *optional*):
            Masked tokens that the teacher committed this many passes or more after the first of them are learned from
            the distribution of the base model, whose adapter is switched off, instead of from the trajectory. 0:
            all of them. Needs an adapter and, unless 0, the column `commit_step`. Costs one pass without gradients.
            The batch marks these tokens in `late`, which has the shape of `labels`.
    """

    near_steps: int | None = None

    def check(self) -> None:
        super().check()
        check_count(self, "near_steps")

    def check_model(self, model: Any) -> None:
        super().check_model(model)
        if self.near_steps is None:
            return
        if not hasattr(model, "disable_adapter"):
            raise SettingError(
                "near_steps",
                self.near_steps,
                "learns from the base model, whose adapter is switched off for that",
                "A model that is trained as a whole has no such base: pass `peft_config`, or leave out `near_steps`.",
            )
        for config in model.peft_config.values():
            way = getattr(config, "init_lora_weights", True)
            if isinstance(way, str) and way not in _HARMLESS_STARTS:
                rule = f"learns from the base model, whose weights `init_lora_weights={way!r}` has changed"
                raise SettingError("near_steps", self.near_steps, rule, "Leave out one of them.")

    @property
    def needs_steps(self) -> bool:
        return super().needs_steps or bool(self.near_steps)

    @property
    def marks(self) -> tuple[str, ...]:
        return (*super().marks, "late")

    def mark(self, views: Views, generator: torch.Generator) -> None:
        super().mark(views, generator)
        if self.near_steps is None:
            return
        late = torch.zeros_like(views.masked)
        for start, end in views.spans:
            masked, steps = views.masked[:, start:end], views.steps[start:end]
            first = steps.expand_as(masked).masked_fill(~masked, steps.max()).amin(dim=1, keepdim=True)
            late[:, start:end] = masked & (steps >= first + self.near_steps)
        views.marks["late"] = late


@documented
@dataclass(kw_only=True)
class SoftTargets(Objective):
    r"""
    How the soft targets of late tokens are made. A temperature below 1 gives the teacher of SPEED (ICML 2026).

    Parameters:
        teacher_temperature (`float`, *optional*, defaults to `1.0`):
            Temperature of the base model's distribution, with `near_steps`. Below 1 it is sharper.
    """

    teacher_temperature: float = 1.0

    def check(self) -> None:
        super().check()
        if not 0 < self.teacher_temperature < float("inf"):
            raise SettingError("teacher_temperature", self.teacher_temperature, "must be positive")
        if self.teacher_temperature != 1.0 and getattr(self, "near_steps", None) is None:
            rule = "has no meaning without `near_steps`, with which tokens are learned from the teacher's distribution"
            raise SettingError("teacher_temperature", self.teacher_temperature, rule, "Set it, or leave both out.")

    def before_scoring(self, step: Step) -> None:
        super().before_scoring(step)
        if "late" in step.marks:
            teacher = Teacher(step, step.marks["late"], self.teacher_temperature)
            step.function, step.labels = teacher.token_terms, teacher.numbers


class Teacher:
    """The student without its adapter, which has seen a batch whose masked tokens are masks and no guesses.

    Its logits are lazy: only a few tokens at a time have theirs in memory, as for the student.
    """

    def __init__(self, step: Step, late: torch.BoolTensor, temperature: float):
        self.student = step.student
        self.temperature = temperature
        self.function = step.function
        self.labels, self.is_late = step.labels[step.scored], late[step.scored]
        numbers = torch.arange(len(self.labels), device=self.labels.device)
        self.numbers = torch.zeros_like(step.labels).masked_scatter(step.scored, numbers)
        with torch.no_grad(), evaluation_mode(step.forward), self.student.disable_adapter():
            self.logits = base_model(self.student).lazy_logits(step.masked_inputs, late, forward=step.forward)
        self.number_of = self.is_late.cumsum(dim=0) - 1

    def token_terms(self, logits: torch.Tensor, numbers: torch.LongTensor) -> TokenTerms:
        """The terms of scored tokens by their numbers; late tokens have the divergence from the teacher."""
        numbers = numbers.to(self.labels.device)
        terms = self.function(logits, self.labels[numbers].to(logits.device))
        late = self.is_late[numbers].nonzero()[:, 0]
        of_teacher = self.number_of[numbers[late]]
        late = late.to(logits.device)
        divergence = self._divergence(logits[late], of_teacher)
        return terms._replace(cross_entropy=terms.cross_entropy.index_copy(0, late, divergence))

    def _divergence(self, logits: torch.Tensor, of_teacher: torch.LongTensor) -> torch.Tensor:
        """KL(teacher || student) in nats, `(tokens,)`, for the student's logits and the numbers of the teacher's."""
        with torch.no_grad(), self.student.disable_adapter():
            teacher = self.logits.at(of_teacher, like=logits).float()
            target = torch.log_softmax(teacher / self.temperature, dim=-1)
        log_probs = logits.float().log_softmax(dim=-1)
        return nn.functional.kl_div(log_probs, target, reduction="none", log_target=True).sum(dim=-1)
