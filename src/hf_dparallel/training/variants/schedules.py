# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""From easy to hard: mask ratio and block length that grow, epoch by epoch."""

import sys
from dataclasses import dataclass
from typing import Any

from ..hooks import documented
from ..masking import Masking, is_count, is_ratio


@documented
@dataclass(kw_only=True)
class Schedules(Masking):
    r"""
    The curriculum of d3LLM (https://github.com/hao-ai-lab/d3LLM). In epoch `e` of `n`, counted from 0, a setting that
    begins at `first` has the value `first + (last - first) * e / (n - 1)`.

    Parameters:
        initial_block_length (`int`, *optional*):
            Block length in the first epoch, from which it goes evenly to `block_length` in the last one. Not for
            block-causal models, whose blocks are the blocks of their attention.
        initial_mask_ratio (`float`, *optional*):
            Mask ratio in the first epoch, from which it goes evenly to the number `mask_ratio` in the last one.
    """

    initial_block_length: int | None = None
    initial_mask_ratio: float | None = None

    def check(self) -> None:
        super().check()
        first, ratio = self.initial_block_length, self.initial_mask_ratio
        is_known = first is None or is_count(first, 1)
        self.require("initial_block_length", is_known, "must be a positive number of tokens")
        is_known = ratio is None or (is_ratio(ratio) and is_ratio(self.mask_ratio))
        rule = "must be a number in (0, 1], from which the ratio goes to the number `mask_ratio`"
        self.require("initial_mask_ratio", is_known, rule, f"`mask_ratio` is {self.mask_ratio!r}.")
        if self.masking == "random":
            self.refuse("initial_block_length", "with `masking='random'`, which has no blocks")
        if self.block_causal:
            self.refuse("initial_block_length", "for a block-causal model, whose attention has blocks of its own")

    def check_epochs(self, num_epochs: int) -> None:
        super().check_epochs(num_epochs)
        rule = (
            "is the value of the first of several epochs, and this training has one, or its data are streamed and "
            "their epochs not known"
        )
        for name in ("initial_block_length", "initial_mask_ratio"):
            is_known = getattr(self, name) is None or 1 < num_epochs < sys.maxsize
            self.require(name, is_known, rule, "Set `num_train_epochs`, or leave it out.")

    def in_epoch(self, name: str, epoch: int, num_epochs: int) -> Any:
        last = super().in_epoch(name, epoch, num_epochs)
        first = getattr(self, f"initial_{name}", None)
        if first is None or num_epochs <= 1:
            return last
        return first + (last - first) * min(epoch / (num_epochs - 1), 1.0)
