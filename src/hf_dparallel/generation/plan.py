# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What a pass computes: which columns of which rows, and which keys and values it replaces."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from transformers import PreTrainedModel

from .canvas import Canvas


class Appended(Protocol):
    """Tokens that a pass computes behind the columns of the canvas, and what the model sees then."""

    input_ids: torch.LongTensor
    position_ids: torch.LongTensor

    def make_mask(self, model: PreTrainedModel, num_columns: int) -> Any:
        """Returns the attention mask of a pass over `num_columns` columns of the canvas and these tokens."""


class Pass(NamedTuple):
    """What a pass computes: a run of columns of some rows.

    Args:
        rows (`torch.LongTensor` of shape `(rows,)`, *optional*): rows of the canvas; `None` for all of them in order.
        columns (`torch.LongTensor` of shape `(rows, columns)`, or `slice`): the columns of each, or of all.
        scored (`torch.LongTensor` of shape `(rows, tokens)`): where in the input the head runs.
        num_keys (`int`): how many columns of the canvas, from the left, the queries attend to.
        seen (`torch.Tensor` of shape `(all rows, width)`, *optional*): 1 for the columns that are seen. `None` if all
            are. It is another tensor as soon as other columns are.
        kept (`torch.BoolTensor` of shape `(rows, columns)`, *optional*): the columns whose keys and values replace
            what a cache keeps, by default all. The others are there because another row needs them.
        appended ([`Appended`], *optional*): further tokens, `(rows, tokens)`, which are
            seen in this pass and kept by no cache.
        embed (`Callable`, *optional*): makes the embeddings, of this pass and the token ids, if the model does not.
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
        """The first column, for all rows or `(rows, 1)`."""
        return self.columns.start if isinstance(self.columns, slice) else self.columns[:, :1]

    @property
    def length(self) -> int:
        """How many columns are computed of each row."""
        columns = self.columns
        return columns.stop - columns.start if isinstance(columns, slice) else columns.shape[1]

    @property
    def num_appended(self) -> int:
        """How many tokens follow the columns."""
        return 0 if self.appended is None else self.appended.input_ids.shape[1]

    @property
    def keys(self) -> "Pass":
        """The same rows with the columns that the queries attend to."""
        return self._replace(columns=slice(0, self.num_keys))

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """What a tensor of the canvas, `(all rows, width)`, holds at the rows and columns of this pass."""
        tensor = tensor if self.rows is None else tensor[self.rows]
        return tensor[:, self.columns] if isinstance(self.columns, slice) else tensor.gather(1, self.columns)


class WholeCanvas:
    """Computes every column of the canvas in every pass, up to the end of the suffix window."""

    # Where there is a choice, whether to compute all rows in one pass and each in a window of its own: fewer shapes.
    uniform = False

    def __init__(self, canvas: Canvas, lead: int):
        self.canvas = canvas
        # How many columns earlier the model predicts a token.
        self.lead = lead
        self.suffix_length = canvas.config.suffix_length

    def plan(self, wanted: torch.LongTensor) -> list[Pass]:
        """The passes that score the tokens at `wanted` columns, `(rows, columns)`, of open blocks or further masks."""
        end = max(self.ends())
        return [Pass(None, slice(0, end), wanted, end, self.seen(end))]

    def stored(self) -> list[Pass]:
        """The passes that score nothing, before these: they store what an encoder makes of final tokens."""
        return []

    def ends(self) -> list[int]:
        """The column behind the last one that each row computes and sees."""
        canvas = self.canvas
        if self.suffix_length is None:
            return [canvas.width] * len(canvas)
        return [min(canvas.open_edges(row)[1] + self.suffix_length, canvas.width) for row in range(len(canvas))]

    def seen(self, num_keys: int) -> torch.Tensor | None:
        """Which columns are seen; `None` if all of the first `num_keys` are."""
        canvas, first_end = self.canvas, min(self.ends())
        if first_end == canvas.width:
            return canvas.attention_mask if canvas.is_padded or canvas.attention != "full" else None
        if first_end == num_keys and not canvas.is_padded:
            return None
        return canvas.attention_mask * (canvas.column_ids < self.open_ends() + self.suffix_length)

    def open_ends(self, rows: torch.LongTensor | None = None) -> torch.LongTensor:
        """The column behind the open blocks of each row, `(rows, 1)`, as a tensor."""
        ends = (self.canvas.block <= self.canvas.open_to[:, None]).sum(dim=1, keepdim=True)
        return ends if rows is None else ends[rows]


class Windows(WholeCanvas):
    """Computes the whole canvas where a row enters a block, and in between only the window of its open blocks.

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
        """Whether the row, so many passes after it was computed as a whole with these open blocks, has to be again."""
        status = self.canvas.status[row]
        is_due = (first, last) != (status.open_from, status.open_to) or passes == self.refresh_interval
        self._refreshed[self.canvas.row_ids[row]] = (status.open_from, status.open_to, 1 if is_due else passes + 1)
        return is_due

    def _windows(
        self, due: list[int], others: list[int]
    ) -> tuple[torch.LongTensor, torch.LongTensor, torch.BoolTensor | None]:
        """The order of the rows, and the others' columns and which of them are kept, with one copy to the device.

        Each window has as many columns as the longest, so others than its own are computed and not kept.
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
    """Computes the open blocks of a model that sees nothing behind them, all that precedes being kept. This is exact.

    A block is stored, as past, when its row has left it, together with the first pass over the next block, and the
    prompt with the first pass of all: storing takes no pass of its own. To compute more than is needed changes
    nothing, for no column sees a later block. So the last column before the open blocks is computed again in every
    pass where it is the one that predicts their first token.
    """

    def __init__(self, canvas: Canvas, lead: int):
        super().__init__(canvas, lead)
        # By row, how many columns at its right end the next pass computes.
        self._missing: dict[int, int] = {}
        # The last columns that were no slice, and what they depend on: the same as long as no row moves on.
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
        # Not before the row: columns of padding go when a longer row leaves.
        starts = [max(canvas.open_edges(row)[0] - self.lead, canvas.prompt_start(row)) for row in range(len(canvas))]
        self._missing = {row_id: canvas.width - start for row_id, start in zip(canvas.row_ids, starts, strict=True)}
        return passes

    def _pass(self, rows: list[int], index: torch.LongTensor | None, wanted: torch.LongTensor) -> Pass:
        """Computes what is missing of some rows, which `index` picks, up to their open blocks."""
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
