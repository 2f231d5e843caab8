# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The settings of masking, for the trainer's configuration and for the collator alike."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from .hooks import Settings, documented


_MASKINGS = ("semi_autoregressive", "random", "trajectory")


class Views(NamedTuple):
    """The masked views of one sequence, each `(views, length)`, before they become rows of a batch.

    Attributes:
        clean: the tokens.
        masked: the masked tokens of the active blocks; what follows these blocks is masked in any case.
        scored: the tokens that have a label.
        spans: the first column of each active block, and the first one after it.
    """

    clean: torch.LongTensor
    masked: torch.BoolTensor
    scored: torch.BoolTensor
    spans: list[tuple[int, int]]


@documented
@dataclass(kw_only=True)
class Masking(Settings):
    r"""
    What the student sees of a trajectory, and what of it is scored.

    Parameters:
        block_length (`int`, *optional*, defaults to `32`):
            Number of tokens in a block. Use the block length you will decode with. The block length of a block-causal
            model replaces it. Unused with `masking="random"`.
        block_origin (`str`, *optional*):
            Where the blocks of a block-causal model are counted from: `"sequence"`, the first token of the prompt, or
            `"answer"`, that of the answer. By default as in the model's recipe. The student's recipe saves it.
        mask_ratio (`float` or `"random"`, *optional*, defaults to `0.5`):
            Probability of masking a token of the active block, in (0, 1] (with `masking="trajectory"` the fraction
            that is masked); `"random"` draws it uniformly from (0, 1] for every row (for a block-causal model for
            every block).
        masking (`str`, *optional*, defaults to `"semi_autoregressive"`):
            `"semi_autoregressive"` masks one block and everything after it; `"random"` masks the whole response, EOS
            padding included (as the published code trains Dream); `"trajectory"` masks what the teacher committed last
            in one block, and everything after it, and needs the column `commit_step`. For a block-causal model all
            blocks of the answer are active, each in its own way.
        complementary_masking (`bool`, *optional*, defaults to `True`):
            Whether to also train, in the same step, on the view that masks exactly the other tokens of the block. The
            loss of a sequence is then the sum of its two views.
        max_length (`int`, *optional*, defaults to `384`):
            Length in tokens to which prompt and completion together are padded with EOS. Longer rows are an error.
            For block-causal models rounded up to whole blocks.
    """

    block_length: int = 32
    block_origin: str | None = field(default=None, metadata={"choices": ["sequence", "answer"]})
    # `None` is refused below. It is in the type because the argument parser then reads strings, where `float | str`
    # would read floats only and refuse "random".
    mask_ratio: float | str | None = 0.5
    masking: str = field(default="semi_autoregressive", metadata={"choices": list(_MASKINGS)})
    complementary_masking: bool = True
    max_length: int = 384

    def check(self) -> None:
        super().check()
        for name in ("block_length", "max_length"):
            self.require(name, is_count(getattr(self, name), 1), "must be a positive number of tokens")
        is_known = self.block_origin in (None, "sequence", "answer")
        self.require("block_origin", is_known, 'must be "sequence" or "answer"')
        is_known = self.mask_ratio == "random" or is_ratio(self.mask_ratio)
        rule = 'must be a number in (0, 1] or "random" (drawn anew for every row)'
        self.require("mask_ratio", is_known, rule, "The paper uses mask_ratio=0.5.")
        rule = (
            'must be "semi_autoregressive" (one active block, as for LLaDA), "random" (the whole response, as for '
            'Dream) or "trajectory" (what the teacher committed last in a block)'
        )
        self.require("masking", self.masking in _MASKINGS, rule)


def is_ratio(value: Any) -> bool:
    """Tells whether a value is a number in (0, 1]."""
    return isinstance(value, int | float) and 0 < value <= 1


def is_count(value: Any, minimum: int = 0) -> bool:
    """Tells whether a value is an integer of at least `minimum`."""
    return isinstance(value, int) and value >= minimum
