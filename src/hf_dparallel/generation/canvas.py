# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The sequences being decoded: prompts, masks, and how far each row has come.

Rows never wait for one another. Each has its own current block and moves to the next one when that is decided; a
finished row is no longer computed. So a row meets the same states in a batch as alone.
"""

import torch


class Canvas:
    """A batch of prompts, each followed by `max_new_tokens` mask tokens.

    Attributes ending in `_ids`, `nfe`, `commit_step` cover the whole batch. `active` holds the indices of the rows
    still being decoded; the methods take and return tensors of those rows only.

    Args:
        input_ids (`torch.LongTensor` of shape `(batch_size, prompt_length)`): left-padded prompts.
        attention_mask (`torch.LongTensor` of shape `(batch_size, prompt_length)`): 0 for the padding.
        max_new_tokens, block_length, mask_token_id (`int`): as in [`DiffusionGenerationConfig`].
        eos_token_ids (`list[int]`): tokens that end an answer; empty if nothing does.
    """

    def __init__(
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.LongTensor,
        *,
        max_new_tokens: int,
        block_length: int,
        mask_token_id: int,
        eos_token_ids: list[int],
    ):
        batch_size, self.prompt_length = input_ids.shape
        device = input_ids.device
        new_ids = input_ids.new_full((batch_size, max_new_tokens), mask_token_id)
        self.sequences = torch.cat([input_ids, new_ids], dim=1)
        self.masked = torch.ones_like(new_ids, dtype=torch.bool)
        self.attention_mask = torch.cat([attention_mask, torch.ones_like(new_ids)], dim=1)
        # Positions count from the first token of the row, whatever the padding.
        self.position_ids = (self.attention_mask.cumsum(dim=1) - 1).clamp(min=0)
        self.is_padded = bool((attention_mask == 0).any())
        self.block_length = block_length
        self.num_blocks = max_new_tokens // block_length
        self.eos_token_ids = eos_token_ids
        self.active = torch.arange(batch_size, device=device)
        self.block = torch.zeros(batch_size, dtype=torch.long, device=device)
        self.step_in_block = torch.zeros(batch_size, dtype=torch.long, device=device)
        self.nfe = torch.zeros(batch_size, dtype=torch.long, device=device)
        self.commit_step = torch.full_like(new_ids, -1)

    @property
    def new_ids(self) -> torch.LongTensor:
        """The generated part of the whole batch, `(batch_size, max_new_tokens)`; a view."""
        return self.sequences[:, self.prompt_length :]

    def model_inputs(self) -> dict[str, torch.Tensor | None]:
        """The inputs of the forward pass for the active rows."""
        return {
            "input_ids": self.sequences[self.active],
            "attention_mask": self.attention_mask[self.active] if self.is_padded else None,
            "position_ids": self.position_ids[self.active],
        }

    def block_columns(self) -> torch.LongTensor:
        """Columns of `new_ids` that make up the current block of each active row, `(active, block_length)`."""
        offsets = torch.arange(self.block_length, device=self.active.device)
        return self.block[self.active, None] * self.block_length + offsets

    def masked_in(self, columns: torch.LongTensor) -> torch.BoolTensor:
        """Which of these columns of the active rows are still to be decided, `(active, columns)`."""
        return self.masked[self.active[:, None], columns]

    def commit(self, columns: torch.LongTensor, tokens: torch.LongTensor, accepted: torch.BoolTensor) -> None:
        """Writes the accepted tokens of a pass and counts the pass; all arguments are `(active, columns)`."""
        rows = self.active[:, None]
        previous = self.new_ids[rows, columns]
        self.new_ids[rows, columns] = torch.where(accepted, tokens, previous)
        step = self.nfe[self.active, None]
        self.commit_step[rows, columns] = torch.where(accepted, step, self.commit_step[rows, columns])
        self.masked[rows, columns] &= ~accepted
        self.nfe[self.active] += 1
        self.step_in_block[self.active] += 1

    def advance(self) -> None:
        """Moves each active row whose block is decided to its next block, and drops the rows that are finished."""
        masked = self.masked[self.active].view(len(self.active), self.num_blocks, self.block_length)
        first_open_block = (masked.any(dim=2).int().cummax(dim=1).values == 0).sum(dim=1)
        self.step_in_block[self.active] *= first_open_block == self.block[self.active]
        self.block[self.active] = first_open_block
        finished = (first_open_block == self.num_blocks) | self._ended()
        self.active = self.active[~finished]

    def decided_length(self) -> torch.LongTensor:
        """How many tokens stand before the first mask, `(batch_size,)`."""
        return (self.masked.int().cummax(dim=1).values == 0).sum(dim=1)

    def length_to_first(self, token_ids: list[int]) -> torch.LongTensor:
        """New tokens up to and including the first decided one of `token_ids`, or all of them, `(batch_size,)`."""
        found = torch.isin(self.new_ids, self.new_ids.new_tensor(token_ids)) & ~self.masked
        before = (found.int().cummax(dim=1).values == 0).sum(dim=1)
        return (before + 1).clamp(max=self.new_ids.shape[1])

    def truncate(self, lengths: torch.LongTensor, pad_token_id: int) -> None:
        """Pads every row after `lengths` (`(batch_size,)`) new tokens and marks the padding in `commit_step`."""
        columns = torch.arange(self.new_ids.shape[1], device=lengths.device)
        beyond = columns >= lengths[:, None]
        self.new_ids.masked_fill_(beyond, pad_token_id)
        self.commit_step.masked_fill_(beyond, -1)
        self.masked &= ~beyond

    def _ended(self) -> torch.BoolTensor:
        """Whether everything up to an end-of-sequence token is decided, `(active,)`."""
        end = self.length_to_first(self.eos_token_ids)
        decided = self.decided_length()
        return (decided >= end)[self.active]
