# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Where the tokens of a row are: positions, blocks and answer, by the length of its prompt."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .configuration import DiffusionGenerationConfig


@dataclass(frozen=True)
class Places:
    """Where each column of some rows is, `(rows, width)`."""

    # 0 for the padding.
    attention_mask: torch.LongTensor
    position_ids: torch.LongTensor
    # The number of the block, below 0 for padding and for what comes before the first block with new tokens; and the
    # position at which it begins.
    block: torch.LongTensor
    block_start: torch.LongTensor
    # Columns before the answer: the prompt, unless it is filled in, and padding.
    is_given: torch.BoolTensor


@dataclass(frozen=True)
class Layout:
    """The blocks of rows: they follow the prompt, or are counted from the first token (`whole_blocks`).

    In the latter case the end of the prompt may share the first block with new tokens, and masks after the answer
    complete the last block. When infilling (`max_new_tokens=0`), the answer is the prompt, blocks end where it ends,
    and the first one may be shorter than `block_length`.
    """

    max_new_tokens: int
    block_length: int
    whole_blocks: bool
    # Masks after the answer. Exact decoding has them: it proposes tokens that the answer may not reach.
    num_beyond: int = 0

    @classmethod
    def of(cls, config: DiffusionGenerationConfig, attention: str) -> "Layout":
        """Returns the layout of a resolved configuration, for a model with this attention."""
        whole_blocks = attention != "full" and config.block_origin == "sequence"
        return cls(config.max_new_tokens, config.block_length, whole_blocks)

    def length(self, prompt_length: int) -> int:
        """Returns the number of tokens of a row: prompt, answer, and masks after it."""
        length = prompt_length + self.max_new_tokens + self.num_beyond
        if self.whole_blocks:
            length += -length % self.block_length
        return length

    def answer(self, prompt_length: int) -> slice:
        """Returns the positions of the answer."""
        start = prompt_length if self.max_new_tokens else 0
        return slice(start, prompt_length + self.max_new_tokens)

    def origin(self, prompt_length: int) -> int:
        """Returns the position at which block 0, the first with new tokens, begins; below 0 if it is shorter."""
        if self.whole_blocks:
            return prompt_length // self.block_length * self.block_length
        if self.max_new_tokens:
            return prompt_length

        # Infilling: whole blocks end with the prompt.
        num_lacking = -prompt_length % self.block_length
        return -num_lacking

    def place(self, prompt_lengths: Sequence[int], columns: torch.LongTensor) -> Places:
        """Returns the places of rows that end at the last of `columns`."""
        edges = []
        for prompt_length in prompt_lengths:
            start = len(columns) - self.length(prompt_length)
            edges.append((start, self.origin(prompt_length), self.answer(prompt_length).start))
        # One copy to the device; each is `(rows, 1)`.
        start, origin, answer_start = columns.new_tensor(edges).split(1, dim=1)

        position = columns - start
        from_origin = position - origin
        block = from_origin.div(self.block_length, rounding_mode="floor")
        return Places(
            attention_mask=(position >= 0).long(),
            position_ids=position.clamp(min=0),
            block=block.where(position >= 0, -1),
            block_start=(position - from_origin % self.block_length).clamp(min=0),
            is_given=position < answer_start,
        )
