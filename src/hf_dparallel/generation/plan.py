# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Plans passes: which columns of which rows they compute, and which keys and values they replace."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .canvas import Canvas


class Appended(NamedTuple):
    """Tokens that a pass computes after the columns of the canvas, and the attention mask of all that it computes."""

    input_ids: torch.LongTensor
    position_ids: torch.LongTensor
    mask: Any


class Pass(NamedTuple):
    """A pass over a run of columns of some rows.

    Args:
        rows (`torch.LongTensor` of shape `(rows,)`, *optional*): rows of the canvas; `None` for all of them in order.
        columns (`torch.LongTensor` of shape `(rows, columns)`, or `slice`): the columns of each, or of all.
        scored (`torch.LongTensor` of shape `(rows, tokens)`): where in the input the head runs.
        num_keys (`int`): how many columns of the canvas, from the left, the queries attend to.
        seen (`torch.Tensor` of shape `(all rows, width)`, *optional*): 1 for the columns that are seen; `None` if all
            are. A new tensor as soon as the columns change.
        kept (`torch.BoolTensor` of shape `(rows, columns)`, *optional*): the columns whose keys and values the cache
            stores, by default all. The others only fill up shorter rows.
        appended ([`Appended`], *optional*): further tokens, `(rows, tokens)`, seen in this pass and not stored.
        embed (`Callable`, *optional*): returns the embeddings for this pass and the token ids, instead of the model.
    """

    rows: torch.LongTensor | None
    columns: torch.LongTensor | slice
    scored: torch.LongTensor
    num_keys: int
    seen: torch.Tensor | None
    kept: torch.BoolTensor | None = None
    appended: Appended | None = None
    embed: "Callable[[Pass, torch.LongTensor], torch.Tensor] | None" = None

    @property
    def first(self) -> int | torch.LongTensor:
        """Returns the first column, for all rows or `(rows, 1)`."""
        return self.columns.start if isinstance(self.columns, slice) else self.columns[:, :1]

    @property
    def length(self) -> int:
        """Returns the number of columns of each row."""
        columns = self.columns
        return columns.stop - columns.start if isinstance(columns, slice) else columns.shape[1]

    @property
    def keys(self) -> "Pass":
        """Returns the same rows with the columns that the queries attend to."""
        return self._replace(columns=slice(0, self.num_keys))

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor of the canvas, `(all rows, width)`, at the rows and columns of this pass."""
        tensor = tensor if self.rows is None else tensor[self.rows]
        return tensor[:, self.columns] if isinstance(self.columns, slice) else tensor.gather(1, self.columns)


class WholeCanvas:
    """Computes every column of the canvas in every pass, up to the end of the suffix window."""

    # Whether to compute all rows in one pass, and each in its own window: fewer shapes to compile.
    uniform = False

    def __init__(self, canvas: Canvas, lead: int):
        self.canvas = canvas
        # How many columns earlier the model predicts a token.
        self.lead = lead
        self.suffix_length = canvas.config.suffix_length

    def plan(self, wanted: torch.LongTensor) -> list[Pass]:
        """Returns the passes that score `wanted` columns, `(rows, columns)`, of open blocks or further masks."""
        end = max(self.ends())
        return [Pass(None, slice(0, end), wanted, end, self.seen(end))]

    def ends(self) -> list[int]:
        """Returns, for each row, the column after the last one that the row computes and sees."""
        canvas = self.canvas
        if self.suffix_length is None:
            return [canvas.width] * len(canvas)
        return [min(canvas.open_edges(row)[1] + self.suffix_length, canvas.width) for row in range(len(canvas))]

    def seen(self, num_keys: int) -> torch.Tensor | None:
        """Returns which of the first `num_keys` columns are seen, or `None` if all are."""
        canvas, first_end = self.canvas, min(self.ends())
        if first_end == canvas.width:
            return canvas.attention_mask if canvas.is_padded or canvas.attention != "full" else None
        if first_end == num_keys and not canvas.is_padded:
            return None
        return canvas.attention_mask * (canvas.column_ids < self.open_ends() + self.suffix_length)

    def open_ends(self, rows: torch.LongTensor | None = None) -> torch.LongTensor:
        """Returns the column after the open blocks of each row, `(rows, 1)`, as a tensor."""
        ends = (self.canvas.block <= self.canvas.open_to[:, None]).sum(dim=1, keepdim=True)
        return ends if rows is None else ends[rows]


class Windows(WholeCanvas):
    """Computes the whole canvas when a row enters a block, and in between only the window of its open blocks.

    The window is the open blocks ("dual"), or takes in all that follows them ("prefix").
    """

    def __init__(self, canvas: Canvas, lead: int):
        super().__init__(canvas, lead)
        self.suffix_is_cached = canvas.config.cache_implementation == "dual"
        self.refresh_interval = canvas.config.cache_refresh_interval
        # By row: its open blocks when it was last computed as a whole, and the passes since then.
        self._refreshed: dict[int, tuple[int, int, int]] = {}

    def plan(self, wanted: torch.LongTensor) -> list[Pass]:
        canvas = self.canvas
        due: list[int] = []
        others: list[int] = []
        before, self._refreshed = self._refreshed, {}
        for row, row_id in enumerate(canvas.row_ids):
            (due if self._count_pass(row, *before.get(row_id, (None, None, 0))) else others).append(row)
        seen = self.seen(canvas.width)
        whole = Pass(None, slice(0, max(self.ends())), wanted, canvas.width, seen)
        if not others:
            return [whole]
        order, columns, kept = self._windows(due, others)
        window = Pass(None, columns, wanted, canvas.width, seen, kept)
        if due:
            first, second = order[: len(due)], order[len(due) :]
            whole = whole._replace(rows=first, scored=wanted[first])
            window = window._replace(rows=second, scored=wanted[second])
        # Columns that only fill up a row may lie outside.
        window = window._replace(scored=(window.scored - columns[:, :1]).clamp(0, columns.shape[1] - 1))
        return [whole, window] if due else [window]

    def _count_pass(self, row: int, first: int | None, last: int | None, passes: int) -> bool:
        """Counts a pass of a row, and returns whether it must compute the whole row."""
        status = self.canvas.status[row]
        is_due = (first, last) != (status.open_from, status.open_to) or passes == self.refresh_interval
        self._refreshed[self.canvas.row_ids[row]] = (status.open_from, status.open_to, 1 if is_due else passes + 1)
        return is_due

    def _windows(
        self, due: list[int], others: list[int]
    ) -> tuple[torch.LongTensor, torch.LongTensor, torch.BoolTensor | None]:
        """Returns the order of all rows, the columns of the `others`, and which of them are kept, in one transfer.

        All windows are as long as the longest one, so shorter ones compute further columns, which are not kept.
        """
        canvas, edges, ends = self.canvas, [], self.ends()
        for row in others:
            start, end = canvas.open_edges(row)
            edges.append((start, end if self.suffix_is_cached else ends[row]))
        size = max(end - max(start - self.lead, 0) for start, end in edges)
        firsts = [min(max(start - self.lead, 0), canvas.width - size) for start, _ in edges]
        is_exact = all((first, first + size) == edge for first, edge in zip(firsts, edges, strict=True))
        numbers = torch.tensor([*due, *others, *firsts, *(start for start, _ in edges), *(end for _, end in edges)])
        sizes = [len(due) + len(others), *[len(others)] * 3]
        order, first, start, end = numbers.to(canvas.column_ids.device).split(sizes)
        columns = first[:, None] + canvas.column_ids[:size]
        return order, columns, None if is_exact else (columns >= start[:, None]) & (columns < end[:, None])


class Blocks(WholeCanvas):
    """Computes the open blocks of a model that sees nothing after them; the cache has all before. This is exact.

    A block is stored when its row has left it, by the first pass over the next block, and the prompt by the very first
    pass: storing takes no pass of its own. Computing more columns than needed changes nothing, because no column sees
    a later block. So the last column before the open blocks is computed again in every pass in which it predicts
    their first token.
    """

    def __init__(self, canvas: Canvas, lead: int):
        super().__init__(canvas, lead)
        # By row, the number of columns at its right end that the next pass computes.
        self._missing: dict[int, int] = {}
        # The last tensor of columns, and what it depends on: the same as long as no row moves on.
        self._columns: torch.LongTensor
        self._columns_of: tuple[list[int], int] | None = None

    def plan(self, wanted: torch.LongTensor) -> list[Pass]:
        canvas = self.canvas
        entering = [row for row, row_id in enumerate(canvas.row_ids) if row_id not in self._missing]
        others = [row for row, row_id in enumerate(canvas.row_ids) if row_id in self._missing]
        self._missing |= {canvas.row_ids[row]: canvas.width - canvas.prompt_start(row) for row in entering}
        if entering and others and not self.uniform:
            order = torch.tensor(entering + others).to(wanted.device)
            first, second = order[: len(entering)], order[len(entering) :]
            passes = [self._pass(entering, first, wanted[first]), self._pass(others, second, wanted[second])]
        else:
            passes = [self._pass(list(range(len(canvas))), None, wanted)]
        # Not left of the row: its padding shrinks when a longer row leaves.
        starts = [max(canvas.open_edges(row)[0] - self.lead, canvas.prompt_start(row)) for row in range(len(canvas))]
        self._missing = {row_id: canvas.width - start for row_id, start in zip(canvas.row_ids, starts, strict=True)}
        return passes

    def _pass(self, rows: list[int], index: torch.LongTensor | None, wanted: torch.LongTensor) -> Pass:
        """Returns the pass over the missing columns of some rows, which `index` picks, up to their open blocks."""
        canvas = self.canvas
        ends = [canvas.open_edges(row)[1] for row in rows]
        starts = [canvas.width - self._missing[canvas.row_ids[row]] for row in rows]
        size = max(end - start for start, end in zip(starts, ends, strict=True))
        shared = slice(min(starts), max(ends))
        columns: torch.LongTensor | slice = shared
        first: int | torch.LongTensor = shared.start
        if self.uniform or shared.stop - shared.start >= 2 * size:
            key = (ends, size)
            if self._columns_of != key:
                first = (self.open_ends(index) - size).clamp(min=0)
                self._columns, self._columns_of = first + canvas.column_ids[:size], key
            columns = self._columns
            first = columns[:, :1]
        else:
            size = shared.stop - shared.start
        # Columns that only fill up a row may lie outside.
        return Pass(index, columns, (wanted - first).clamp(0, size - 1), shared.stop, canvas.attention_mask)
