# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The rows of a model with a causal past, their drafts and their masks, and the passes over them."""

import torch
from transformers import PreTrainedModel

from ..generation.canvas import Canvas
from ..generation.configuration import DiffusionGenerationConfig
from ..generation.layout import Layout
from ..generation.plan import Pass, Planner, known_and_new


class DraftCanvas(Canvas):
    """Rows of a model with a causal past. The open blocks are the next token and the drafts after it.

    After them stand `num_masks` masks, which draft further tokens.
    """

    def __init__(self, config: DiffusionGenerationConfig, attention: str, num_masks: int):
        # Every token is a block of its own, and the last masks have room.
        layout = Layout(config.max_new_tokens, 1, False, 2 * config.block_length)
        super().__init__(config, attention, layout=layout)
        self.num_masks = num_masks
        # The drafted tokens, the mask token elsewhere.
        self.drafts = self.row_tensor(config.mask_token_id)
        # By row id, the first token of the answer that was written after the last pass.
        self.written: dict[int, int] = {}

    def write(self, row: int, number: int, tokens: list[int]) -> None:
        super().write(row, number, tokens)
        if tokens:
            self.written[self.row_ids[row]] = number

    def input_ids(self) -> torch.LongTensor:
        return self.sequences.where(~self.masked, self.drafts.value)

    def is_mask(self) -> torch.BoolTensor:
        return self.block >= self.open_to[:, None]

    def mask_blocks(self) -> torch.LongTensor:
        # Decided and drafted tokens are causal. Masks see these and one another, and none that are left over.
        first_mask = self.open_to[:, None]
        is_left_over = self.block >= first_mask + self.num_masks
        return self.block.minimum(first_mask) + is_left_over.long()

    def _last_open(self, first: torch.LongTensor) -> torch.LongTensor:
        is_draft = self.drafts.value != self.config.mask_token_id
        return first + is_draft.sum(dim=1)


class DraftPlanner(Planner):
    """Computes the tokens that the cache lacks, the drafts after them, and masks that draft further tokens.

    Decided and drafted tokens are causal and stored, so they verify the drafts and are the cache of the next pass.
    What a pass stores of rejected drafts and masks is seen by nobody, and replaced by the tokens that come there.
    Scores are those of the open tokens of each row, and then of what its masks draft.
    """

    def __init__(self, canvas: DraftCanvas, model: PreTrainedModel):
        super().__init__(canvas, model)
        self.canvas: DraftCanvas = canvas
        # Where the first mask that drafts a token stands: one that scores its own place has the next token before.
        self.first_mask = int(not model.shift_logits)
        self.is_cached = canvas.config.cache_implementation != "none"
        # By row id, how many columns at its right end the cache lacks.
        self._missing: dict[int, int] = {}

    def plan(self, wanted: torch.LongTensor) -> list[Pass]:
        canvas = self.canvas
        scored = self._scored(wanted)
        # The last open token is predicted where the first mask stands.
        num_after = canvas.num_masks - 1

        passes = []
        for rows in known_and_new(canvas.row_ids, self._missing):
            starts = [self._first_computed(row) for row in rows]
            passes += self.up_to_open_blocks(rows, starts, scored, num_after)
        # Scored places are those of the hidden states.
        return [each._replace(predicting_columns=each.columns - each.columns[:, :1]) for each in passes]

    def note(self) -> None:
        canvas = self.canvas
        canvas.written.clear()
        self._missing = {}
        for row, row_id in enumerate(canvas.row_ids):
            start = max(canvas.open_edges(row)[1] - 1, canvas.prompt_start(row))
            self._missing[row_id] = canvas.width - start

    def _first_computed(self, row: int) -> int:
        canvas = self.canvas
        row_id = canvas.row_ids[row]
        if not self.is_cached:
            return 0

        first_open = canvas.open_edges(row)[0]
        if row_id in canvas.written:
            # The last token before those that were written may replace a draft, too.
            first_open = canvas.answer(row).start + canvas.written[row_id]
        whole = canvas.width - canvas.prompt_start(row)
        return min(canvas.width - self._missing.get(row_id, whole), first_open - 1)

    def _scored(self, wanted: torch.LongTensor) -> torch.LongTensor:
        """Returns the columns before the open tokens of each row, and then those of the masks that draft more."""
        canvas = self.canvas
        before = wanted[:, :1] - 1 + canvas.column_ids[: wanted.shape[1]]
        if not canvas.num_masks:
            return before

        last_open = (canvas.block < canvas.open_to[:, None]).sum(dim=1, keepdim=True)
        masks = last_open + canvas.column_ids[self.first_mask : canvas.num_masks]
        return torch.cat([before, masks], dim=1)
