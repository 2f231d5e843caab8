# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Rows in which the student meets its own guesses, right or wrong."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.attention.flex_attention import BlockMask

from hf_dparallel_rules.certainty import measure_certainty

from ...generation.answerer import evaluation_mode
from ..hooks import Step, Variant, documented
from ..masking import Views, is_ratio
from ..student import base_model


class Guesses(NamedTuple):
    """The likeliest tokens, `(num_positions,)`."""

    tokens: torch.LongTensor


@documented
@dataclass(kw_only=True)
class OnPolicyRows(Variant):
    r"""
    On-policy uniform training of DMax (https://huggingface.co/papers/2604.08302), without its two habits: it has no
    certainty loss (`certainty_weight=0.0` here), and scores the given tokens of the other rows, too.

    The guesses are the likeliest tokens of a pass without gradients. With `x` the active block `B` after them,

        L_consistency = mean over i in B of -log p(y_i | prompt, earlier blocks, x, masks after)

    Parameters:
        on_policy_ratio (`float`, *optional*, defaults to `0.0`):
            Share of the rows in which the masked tokens of the active block are replaced by the student's own
            guesses, right or wrong, and all tokens of the block are scored: the student learns to correct itself.
            Costs one pass without gradients. The batch marks these rows in `on_policy`, `(rows,)`.
    """

    mark_name = "on_policy"
    on_policy_ratio: float = 0.0

    def check(self) -> None:
        super().check()
        is_known = self.on_policy_ratio == 0 or is_ratio(self.on_policy_ratio)
        self.require("on_policy_ratio", is_known, "must be a number from 0 to 1")

    def mark(self, views: Views, generator: torch.Generator) -> Views:
        guessed = torch.rand(len(views.masked), generator=generator) < self.on_policy_ratio
        scored = views.scored.clone()
        for start, end in views.spans:
            scored[guessed, start:end] = True
        return views._replace(scored=scored).marked(OnPolicyRows.mark_name, guessed)

    def before_scoring(self, step: Step, mark: torch.BoolTensor) -> Step:
        def guess(logits: torch.Tensor, _: torch.LongTensor) -> Guesses:
            return Guesses(measure_certainty(logits, step.mask_token_id).tokens)

        ids = step.inputs["input_ids"]
        masked = (ids == step.mask_token_id) & step.scored & mark[:, None]
        # All processes run the pass, as sharded weights are gathered in it: without such a row over one, for nothing.
        rows: Any = mark.nonzero()[:, 0]
        rows = rows if len(rows) else rows.new_zeros(1)
        attention_mask = step.inputs.get("attention_mask")
        if isinstance(attention_mask, BlockMask) and attention_mask.shape[0] > 1:
            # Rows that each have their own cannot be taken out of it.
            rows = slice(None)
        shown = {name: value[rows] if torch.is_tensor(value) else value for name, value in step.inputs.items()}
        with torch.no_grad(), evaluation_mode(step.forward):
            guesses = base_model(step.student).score(shown, masked[rows], guess, ids[rows], forward=step.forward)
        ids = ids.masked_scatter(masked, guesses.tokens.to(ids.device))
        return step._replace(inputs={**step.inputs, "input_ids": ids})
