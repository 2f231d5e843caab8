# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Where the tokens of a row are: positions, blocks and answer, by the length of its prompt."""

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from .configuration import DiffusionGenerationConfig


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
    # Masks after the answer, for windows that begin at any token.
    num_beyond: int = 0

    @classmethod
    def of(cls, config: DiffusionGenerationConfig, attention: str) -> "Layout":
        """Returns the layout of a resolved configuration, for a model with this attention."""
        whole_blocks = attention != "full" and config.block_origin == "sequence"
        return cls(config.max_new_tokens, config.block_length, whole_blocks)

    @property
    def is_infilling(self) -> bool:
        """Returns whether the answer is the prompt, whose masks are filled in."""
        return self.max_new_tokens == 0

    def length(self, prompt_length: int) -> int:
        """Returns the number of tokens of a row: prompt, answer, and masks after it."""
        length = prompt_length + self.max_new_tokens + self.num_beyond
        return length + (-length % self.block_length if self.whole_blocks else 0)

    def answer(self, prompt_length: int) -> slice:
        """Returns the positions of the answer."""
        return slice(0 if self.is_infilling else prompt_length, prompt_length + self.max_new_tokens)

    def origin(self, prompt_length: int) -> int:
        """Returns the position at which block 0, the first with new tokens, begins; below 0 if it is shorter."""
        if self.whole_blocks:
            return prompt_length // self.block_length * self.block_length
        return -(-prompt_length % self.block_length) if self.is_infilling else prompt_length

    def place(self, prompt: torch.LongTensor, mask_token_id: int) -> dict[str, torch.Tensor]:
        """Returns the tensors of a row, `(length,)` each, by name ([`Canvas`])."""
        num_given = 0 if self.is_infilling else len(prompt)
        sequence = pad(prompt, (0, self.length(len(prompt)) - len(prompt)), value=mask_token_id)
        position_ids = torch.arange(len(sequence), device=sequence.device)
        from_origin = position_ids - self.origin(len(prompt))
        is_given = position_ids < num_given
        masked = ~is_given & (sequence == mask_token_id)
        return {
            "sequences": sequence,
            "attention_mask": torch.ones_like(sequence),
            "position_ids": position_ids,
            "block": from_origin.div(self.block_length, rounding_mode="floor"),
            "block_start": (position_ids - from_origin % self.block_length).clamp(min=0),
            "is_given": is_given,
            "masked": masked,
            "holding": masked,
        }
