# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Learning from the distribution of the teacher, which is the student without its adapter."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...generation.answerer import evaluation_mode
from ...models.adapter_files import HARMLESS_STARTS
from ..hooks import Step, Variant, documented
from ..masking import Views, is_count
from ..objective import TokenTerms
from ..student import base_model


@documented
@dataclass(kw_only=True)
class SoftTargets(Variant):
    r"""
    Soft targets for some tokens: the teacher's late tokens are one draw of several, so the student learns their
    distribution (TAD, https://huggingface.co/papers/2605.09536, whose teacher also sees the reference answer).

    With `s_i` the pass in which the teacher committed token `i`, `s` the first such pass among the masked tokens of
    the block, `z` the logits of the teacher and `t` its temperature,

        L_consistency = mean over masked i of  -log p(y_i)                      if s_i < s + near_steps
                                               KL(softmax(z_i / t) || p_i)      else

    Parameters:
        near_steps (`int`, *optional*):
            Masked tokens that the teacher committed at least this many passes after the first of them are learned
            from the base model's distribution (adapter off), not from the trajectory. 0: all of
            them. Needs an adapter and, unless 0, the column `commit_step`. Costs one pass without gradients.
            The batch marks these tokens in `late`, which has the shape of `labels`.
        teacher_temperature (`float`, *optional*, defaults to `1.0`):
            Temperature of the base model's distribution, with `near_steps`. Below 1 it is sharper, like the
            teacher's in SPEED (ICML 2026).
    """

    mark_name = "late"
    near_steps: int | None = None
    teacher_temperature: float = 1.0

    def check(self) -> None:
        super().check()
        is_known = self.near_steps is None or is_count(self.near_steps)
        self.require("near_steps", is_known, "must be 0 or a positive integer")
        self.require("teacher_temperature", 0 < self.teacher_temperature < float("inf"), "must be positive")
        is_used = self.teacher_temperature == 1.0 or self.near_steps is not None
        rule = "has no meaning without `near_steps`, with which tokens are learned from the teacher's distribution"
        self.require("teacher_temperature", is_used, rule, "Set it, or leave both out.")

    def check_student(self, model: Any) -> None:
        rule = "learns from the base model, whose adapter is switched off for that"
        remedy = "A model that is trained as a whole has no such base: pass `peft_config`, or leave out `near_steps`."
        self.require("near_steps", hasattr(model, "disable_adapter"), rule, remedy)
        for config in model.peft_config.values():
            way = getattr(config, "init_lora_weights", True)
            rule = f"learns from the base model, whose weights `init_lora_weights={way!r}` has changed"
            self.require("near_steps", way in HARMLESS_STARTS, rule, "Leave out one of them.")

    def needs_steps(self) -> str:
        return "near_steps" if self.near_steps else ""

    def mark(self, views: Views, generator: torch.Generator) -> Views:
        late = torch.zeros_like(views.masked)
        for start, end in views.spans:
            masked, steps = views.masked[:, start:end], views.steps[start:end]
            first = steps.expand_as(masked).masked_fill(~masked, steps.max()).amin(dim=1, keepdim=True)
            late[:, start:end] = masked & (steps >= first + self.near_steps)
        return views.marked(SoftTargets.mark_name, late)

    def before_scoring(self, step: Step, mark: torch.BoolTensor) -> Step:
        """Replaces the cross-entropy of marked tokens by the divergence from the student without its adapter.

        The teacher sees masks where the student may see its own guesses. Its logits are computed for a few tokens at a
        time, as the student's are.
        """
        student, function = step.student, step.function
        labels, is_late = step.labels[step.scored], mark[step.scored]
        number_of_teacher = is_late.cumsum(dim=0) - 1
        with torch.no_grad(), evaluation_mode(step.forward), student.disable_adapter():
            teacher = base_model(student).lazy_logits(step.masked_inputs, mark, forward=step.forward)

        def token_terms(logits: torch.Tensor, numbers: torch.LongTensor) -> TokenTerms:
            """Returns the terms of scored tokens from their numbers in the batch."""
            numbers = numbers.to(labels.device)
            terms = function(logits, labels[numbers].to(logits.device))
            chosen = is_late[numbers].nonzero()[:, 0]
            places = number_of_teacher[numbers[chosen]]
            chosen = chosen.to(logits.device)
            with torch.no_grad(), student.disable_adapter():
                scores = teacher.at(places, like=logits).float() / self.teacher_temperature
                target = torch.log_softmax(scores, dim=-1)
            log_probs = logits[chosen].float().log_softmax(dim=-1)
            divergence = nn.functional.kl_div(log_probs, target, reduction="none", log_target=True).sum(dim=-1)
            return terms._replace(losses=terms.losses.index_put((chosen, torch.zeros_like(chosen)), divergence))

        numbers = torch.arange(len(labels), device=labels.device)
        numbered = torch.zeros_like(step.labels).masked_scatter(step.scored, numbers)
        return step._replace(labels=numbered, function=token_terms)
