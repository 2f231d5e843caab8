# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The rows of a model with a causal past, their drafts and their masks, and the passes over them."""

from typing import Any

import torch
from transformers import PreTrainedModel

from ..generation.canvas import Canvas
from ..generation.configuration import DiffusionGenerationConfig
from ..generation.layout import Layout
from ..generation.plan import BlockPlanner, Pass, Planner


class DraftCanvas(Canvas):
    """Rows of a model with a causal past. The open blocks are the next token and the drafts after it.

    After them stand the columns of `num_masks` masks, which draft further tokens. They are a window that may begin
    before the last drafts: they see what is before their window, and one another.
    """

    def __init__(self, config: DiffusionGenerationConfig, attention: str, num_masks: int):
        # Every token is a block of its own, and the last masks have room.
        layout = Layout(config.max_new_tokens, 1, False, 2 * config.block_length)
        super().__init__(config, attention, layout=layout)
        self.num_masks = num_masks
        if not config.exact:
            self.max_open = 1
        # The drafted tokens, the mask token elsewhere.
        self.drafts = self.row_tensor(config.mask_token_id)
        # The block that the window begins at, see `window_start`.
        self.window = self.row_tensor(0, is_wide=False)
        # By row id, the first token of the answer that was written after the last pass.
        self.written: dict[int, int] = {}

    def write(self, row: int, number: int, tokens: list[int]) -> None:
        super().write(row, number, tokens)
        if tokens:
            self.written[self.row_ids[row]] = number

    def input_ids(self) -> torch.LongTensor:
        return self.sequences.where(~self.masked, self.drafts.value)

    def own(self) -> None:
        super().own()
        self.drafts.value = self.drafts.value.clone()
        self.window.value = self.window.value.clone()

    def window_start(self) -> torch.LongTensor:
        """Returns the block that the window of each row begins at, an open one, `(rows, 1)`."""
        return torch.maximum(self.window.value, self.open_from).minimum(self.open_to)[:, None]

    def positions(self) -> torch.LongTensor:
        if not self.num_masks:
            return self.position_ids

        # The columns of the masks follow the last draft, wherever their window begins.
        num_later = self.open_to[:, None] - self.window_start()
        return self.position_ids - num_later * self.is_mask()

    def is_mask(self) -> torch.BoolTensor:
        return self.block >= self.open_to[:, None]

    def mask_blocks(self) -> torch.LongTensor:
        # Decided and drafted tokens are causal. Masks see these and one another, and none that are left over.
        first_mask = self.open_to[:, None]
        is_left_over = self.block >= first_mask + self.num_masks
        return self.block.minimum(first_mask) + is_left_over.long()

    def _last_open(self, first: torch.LongTensor) -> torch.LongTensor:
        is_draft = (self.drafts.value != self.config.mask_token_id) & (self.block >= first[:, None])
        return first + is_draft.sum(dim=1)


class DraftPlanner(BlockPlanner):
    """Computes the tokens that the cache lacks, the drafts after them, and masks that draft further tokens.

    Decided and drafted tokens are causal and stored, so they verify the drafts and are the cache of the next pass.
    What a pass stores of rejected drafts, of those after them and of masks is seen by nobody, and replaced by the
    tokens that come there.
    Scores are those of the open tokens of each row, and then of what its masks draft.
    """

    def __init__(self, canvas: DraftCanvas, model: PreTrainedModel):
        super().__init__(canvas, model)
        self.canvas: DraftCanvas = canvas
        # Where the first mask that drafts a token stands: one that scores its own place has the next token before.
        self.first_mask = int(not model.shift_logits)
        self.is_cached = canvas.config.cache_implementation != "none"
        if model.device.type == "cpu":
            # A column costs more there than to compute other columns in each row.
            self.most_in_step = 1.0
        # How many tokens the planned passes compute, if no row is new.
        self.num_computed: int | None = None
        # What the planned pass has taken of `canvas.written`.
        self._taken: dict[int, int] = {}

    def plan(self, wanted: torch.LongTensor) -> list[Pass]:
        passes = super().plan(wanted)

        self.num_computed = None
        if self._missing.keys() >= set(self.canvas.row_ids):
            self.num_computed = sum(planned.columns.numel() for planned in passes)
        return passes

    def over_rows(self, rows: list[int], wanted: torch.LongTensor) -> list[Pass]:
        return [_at_places(planned) for planned in super().over_rows(rows, self._scored(wanted))]

    def groups(self) -> dict[str, list[int]]:
        if not self.is_cached:
            return Planner.groups(self)
        return super().groups()

    def compiled(self, kind: str, wanted: torch.LongTensor, is_of_pass: torch.BoolTensor | None) -> Pass:
        return _at_places(super().compiled(kind, self._scored(wanted), is_of_pass))

    def mask(self, planned: Pass) -> Any:
        """Returns the mask as scores are added to it, where attention would convert it in every layer."""
        mask = super().mask(planned)
        if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
            return mask
        return torch.zeros_like(mask, dtype=self.model.dtype).masked_fill_(~mask, -torch.inf)

    def visible(self, planned: Pass) -> torch.BoolTensor:
        canvas = self.canvas
        is_visible = super().visible(planned)
        if not canvas.num_masks:
            return is_visible

        is_later = (canvas.block >= canvas.window_start()) & (canvas.block < canvas.open_to[:, None])
        is_hidden = planned.of(canvas.is_mask())[:, :, None] & planned.of_keys(is_later)[:, None]
        return is_visible & ~is_hidden

    def _num_open_columns(self) -> int:
        return 2 * self.canvas.config.block_length

    def _num_after(self) -> int:
        # The last open token is predicted where the first mask stands.
        return self.canvas.num_masks - 1

    def note(self) -> None:
        canvas = self.canvas
        for row_id, number in list(canvas.written.items()):
            # Hooks may have written more in this pass.
            if row_id not in canvas.row_ids or self._taken.get(row_id) == number:
                del canvas.written[row_id]
        self._taken = {}
        super().note()

    def _end_of_stored(self, row: int) -> int:
        return self.canvas.open_edges(row)[1] - 1

    def _start(self, row: int) -> int:
        canvas = self.canvas
        row_id = canvas.row_ids[row]
        if not self.is_cached:
            return 0

        first_open = canvas.open_edges(row)[0]
        if row_id in canvas.written:
            self._taken[row_id] = canvas.written[row_id]
            # The last token before those that were written may replace a draft, too.
            first_open = canvas.answer(row).start + canvas.written[row_id]
        return min(super()._start(row), first_open - 1)

    def _scored(self, wanted: torch.LongTensor) -> torch.LongTensor:
        """Returns the columns before the open tokens of each row, and then those of the masks that draft more."""
        canvas = self.canvas
        before = wanted[:, :1] - 1 + canvas.column_ids[: wanted.shape[1]]
        if not canvas.num_masks:
            return before

        last_open = (canvas.block < canvas.open_to[:, None]).sum(dim=1, keepdim=True)
        masks = last_open + canvas.column_ids[self.first_mask : canvas.num_masks]
        return torch.cat([before, masks], dim=1)


def _at_places(planned: Pass) -> Pass:
    """Returns a pass whose scores are those of the hidden states at the scored places."""
    return planned._replace(predicting_columns=planned.columns - planned.columns[:, :1])
