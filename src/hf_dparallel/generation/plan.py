# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Plans passes: which columns of which rows they compute, what these see, and which keys and values they replace."""

from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from ..attention_masks import as_attention_mask, as_key_mask
from .canvas import Canvas
from .compatibility import moves_blocks


# The most columns of a prompt that are stored in one pass: its mask has a line for each.
_LONGEST_RUN = 2048


class Pass(NamedTuple):
    """A pass over a run of columns of some rows."""

    # Rows of the canvas; `None` for all of them in order.
    rows: torch.LongTensor | None
    # The columns of each, `(rows, columns)`, and where in the input the head runs, `(rows, tokens)`.
    columns: torch.LongTensor
    scored: torch.LongTensor
    # How many columns of the canvas, from the left, the queries attend to.
    num_keys: int
    # 1 for the columns that are seen, `(all rows, width)`; `None` if all are.
    seen: torch.Tensor | None = None
    # The first column, if all rows compute the same columns.
    start: int | None = None
    # The attention mask, in the form that the model takes.
    mask: Any = None
    # The columns whose keys and values are stored, `(rows, columns)`; by default all. Others fill up shorter rows.
    kept: torch.BoolTensor | None = None
    # Token ids and position ids, `(2, rows, tokens)`, computed after the columns, seen in this pass, and not stored.
    appended: torch.LongTensor | None = None
    # The embeddings of the columns, where they are not those of their tokens.
    inputs_embeds: torch.Tensor | None = None
    # The column whose hidden state is scored for each, where it is not the one that the model takes.
    predicting_columns: torch.LongTensor | None = None

    @property
    def length(self) -> int:
        """Returns the number of columns of each row."""
        return self.columns.shape[1]

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor of the canvas, `(all rows, width)`, at the rows and columns of this pass."""
        tensor = tensor if self.rows is None else tensor[self.rows]
        if self.start is not None:
            return tensor[:, self.start : self.start + self.length]
        return tensor.gather(1, self.columns)

    def of_keys(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor of the canvas at the rows of this pass and the columns that the queries attend to."""
        return (tensor if self.rows is None else tensor[self.rows])[:, : self.num_keys]


class WholeCanvas:
    """Computes every column of the canvas in every pass, up to the end of the suffix window."""

    def __init__(self, canvas: Canvas, model: PreTrainedModel):
        self.canvas, self.model = canvas, model
        # How many columns earlier the model predicts a token.
        self.shift = int(model.shift_logits or model.predicts_next_block)
        self.suffix_length = canvas.config.suffix_length

    def plan(self, wanted: torch.LongTensor) -> list[Pass]:
        """Returns passes that score `wanted` columns, `(rows, columns)`, of open blocks or further masks.

        Passes that only store keys and values come first, and score nothing.
        """
        return [self._shared(None, wanted, slice(0, self.end()), self.end())]

    def end(self) -> int:
        """Returns the column after the last one that any row computes and sees."""
        canvas = self.canvas
        if self.suffix_length is None:
            return canvas.width
        return min(max(canvas.open_edges(row)[1] for row in range(len(canvas))) + self.suffix_length, canvas.width)

    def open_ends(self) -> torch.LongTensor:
        """Returns the column after the open blocks of each row, `(rows, 1)`, as a tensor."""
        return (self.canvas.block <= self.canvas.open_to[:, None]).sum(dim=1, keepdim=True)

    def mask(self, planned: Pass) -> Any:
        """Returns the attention mask of a pass, for models of this package in the form that their attention takes.

        transformers would create it in every pass, and wait for the device to see whether it masks anything.
        """
        canvas, model, config = self.canvas, self.model, self.model.config.get_text_config()
        if planned.seen is None:
            return None
        seen = planned.of_keys(planned.seen)
        if canvas.attention == "full" or not model.takes_visibility:
            return as_key_mask(config, seen, planned.length, model.dtype) if model.is_native else seen
        blocks = canvas.mask_blocks()
        visible = seen[:, None].bool() & (planned.of_keys(blocks)[:, None] <= planned.of(blocks)[:, :, None])
        return as_attention_mask(config, visible, model.dtype)

    def _shared(self, rows: torch.LongTensor | None, wanted: torch.LongTensor, columns: slice, num_keys: int) -> Pass:
        """Returns a pass over the same columns of some rows."""
        return self._pass(rows, self.canvas.column_ids[None, columns], wanted, num_keys, start=columns.start)

    def _pass(
        self,
        rows: torch.LongTensor | None,
        columns: torch.LongTensor,
        wanted: torch.LongTensor,
        num_keys: int,
        start: int | None = None,
        kept: torch.BoolTensor | None = None,
    ) -> Pass:
        """Returns a pass over `columns` of some rows, with the mask of these, which scores what is `wanted` there."""
        wanted = wanted if rows is None else wanted[rows]
        # Columns that only fill up a row may lie outside.
        scored = (wanted - columns[:, :1]).clamp(0, columns.shape[1] - 1)
        planned = Pass(rows, columns.expand(len(wanted), -1), scored, num_keys, self._seen(), start, kept=kept)
        return planned._replace(mask=self.mask(planned))

    def _seen(self) -> torch.Tensor | None:
        """Returns which columns are seen, `(all rows, width)`, or `None` if all are."""
        canvas = self.canvas
        if self.suffix_length is not None:
            return canvas.attention_mask * (canvas.column_ids < self.open_ends() + self.suffix_length)
        return canvas.attention_mask if canvas.is_padded or canvas.attention != "full" else None


class Windows(WholeCanvas):
    """Computes the whole canvas when a row enters a block, and in between only the window of its open blocks.

    The window is the open blocks ("dual"), or takes in all that follows them ("prefix").
    """

    def __init__(self, canvas: Canvas, model: PreTrainedModel):
        super().__init__(canvas, model)
        self.suffix_is_cached = canvas.config.cache_implementation == "dual"
        self.refresh_interval = canvas.config.cache_refresh_interval
        # By row: its open blocks when it was last computed as a whole, and the passes since then.
        self._refreshed: dict[int, tuple[tuple[int, int], int]] = {}

    def plan(self, wanted: torch.LongTensor) -> list[Pass]:
        canvas, whole = self.canvas, slice(0, self.end())
        before, self._refreshed = self._refreshed, {}
        due: list[int] = []
        others: list[int] = []
        for row, (row_id, status) in enumerate(zip(canvas.row_ids, canvas.status, strict=True)):
            open_blocks = (status.open_from, status.open_to)
            known, count = before.get(row_id, (None, 0))
            is_due = known != open_blocks or count == self.refresh_interval
            self._refreshed[row_id] = (open_blocks, 1 if is_due else count + 1)
            (due if is_due else others).append(row)
        first, second = None, None
        if due and others:
            first, second = torch.tensor([*due, *others]).to(wanted.device).split([len(due), len(others)])
        passes = [self._shared(first, wanted, whole, canvas.width)] if due else []
        return [*passes, self._window(second, others, wanted)] if others else passes

    def _window(self, index: torch.LongTensor | None, rows: list[int], wanted: torch.LongTensor) -> Pass:
        """Returns a pass over the windows of some rows, which `index` picks.

        All windows are as long as the longest one, so shorter ones compute further columns, which are not kept.
        """
        canvas, shift, num_after = self.canvas, self.shift, self.suffix_length
        if self.suffix_is_cached or num_after is None:
            num_after = 0 if self.suffix_is_cached else canvas.width
        edges = map(canvas.open_edges, rows)
        sizes = [min(end + num_after, canvas.width) - max(start - shift, 0) for start, end in edges]
        size, is_exact = max(sizes), not shift and min(sizes) == max(sizes)
        start = (canvas.block < canvas.open_from[:, None]).sum(dim=1, keepdim=True)
        end = self.open_ends() + num_after
        start, end = (start, end) if index is None else (start[index], end[index])
        columns = (start - shift).clamp(0, canvas.width - size) + canvas.column_ids[:size]
        kept = None if is_exact else (columns >= start) & (columns < end)
        return self._pass(index, columns, wanted, canvas.width, kept=kept)


class Blocks(WholeCanvas):
    """Computes the open blocks of a model that sees nothing after them; the cache has all before. This is exact.

    A block is stored when its row has left it, by the first pass over the next block, and the prompt by the very first
    pass: storing takes no pass of its own. Computing more columns than needed changes nothing, because no column sees
    a later block. So the last column before the open blocks is computed again in every pass in which it predicts
    their first token, and a long prompt is stored in several runs.
    """

    def __init__(self, canvas: Canvas, model: PreTrainedModel):
        super().__init__(canvas, model)
        # By row, the number of columns at its right end that the next pass computes.
        self._missing: dict[int, int] = {}
        # The columns after the open blocks that are computed, too.
        self.num_after = 0

    def plan(self, wanted: torch.LongTensor) -> list[Pass]:
        canvas = self.canvas
        is_new = [row_id not in self._missing for row_id in canvas.row_ids]
        self._missing |= {
            row_id: canvas.width - canvas.prompt_start(row) for row, row_id in enumerate(canvas.row_ids) if is_new[row]
        }
        passes = []
        for kind in set(is_new):
            rows = [row for row in range(len(canvas)) if is_new[row] == kind]
            index = None if len(rows) == len(canvas) else torch.tensor(rows).to(wanted.device)
            passes += self._passes(rows, index, self._scored(wanted))
        # Not left of the row: its padding shrinks when a longer row leaves.
        starts = [max(self._first_unstored(row), canvas.prompt_start(row)) for row in range(len(canvas))]
        self._missing = {row_id: canvas.width - start for row_id, start in zip(canvas.row_ids, starts, strict=True)}
        return passes

    def _first_unstored(self, row: int) -> int:
        """Returns the first column of a row that the pass after this one computes."""
        return self.canvas.open_edges(row)[0] - self.shift

    def _edges(self, row: int) -> tuple[int, int]:
        """Returns the first column of a row that is not stored, and the one after the last that is computed."""
        return self.canvas.width - self._missing[self.canvas.row_ids[row]], self.canvas.open_edges(row)[1]

    def _scored(self, wanted: torch.LongTensor) -> torch.LongTensor:
        """Returns the columns that score the `wanted` ones."""
        return wanted

    def _passes(self, rows: list[int], index: torch.LongTensor | None, wanted: torch.LongTensor) -> list[Pass]:
        """Returns passes over the missing columns of some rows, which `index` picks, up to their open blocks."""
        canvas = self.canvas
        starts, ends = zip(*map(self._edges, rows), strict=True)
        size = max(end - start for start, end in zip(starts, ends, strict=True))
        shared = slice(min(starts), max(ends))
        if shared.stop - shared.start < 2 * size:
            # Scores come from the last run, the column before the open blocks included.
            *runs, last = self._runs(shared, min(canvas.open_edges(row)[0] for row in rows) - 1)
            stored = [self._shared(index, wanted[:, :0], run, run.stop) for run in runs]
            return [*stored, self._shared(index, wanted, last, last.stop)]
        first = (self.open_ends() + self.num_after - size).clamp(min=0)
        columns = (first if index is None else first[index]) + canvas.column_ids[:size]
        return [self._pass(index, columns, wanted, shared.stop)]

    def _runs(self, columns: slice, first: int) -> list[slice]:
        """Cuts columns into runs, of which the last has all from column `first` on.

        A block that is cut is computed again by the next run, as a whole. Where blocks choose their experts, none is.
        """
        start, block_length = columns.start, self.canvas.config.block_length
        longest, runs = max(_LONGEST_RUN, 4 * block_length), []
        while moves_blocks(self.model) and columns.stop - start > longest and first - start > block_length:
            stop = min(start + longest, first)
            runs.append(slice(start, stop))
            start = stop - block_length
        return [*runs, slice(start, columns.stop)]
