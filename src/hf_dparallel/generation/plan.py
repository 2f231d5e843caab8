# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Plans passes: which columns of which rows they compute, what these see, and which keys and values they replace."""

from collections.abc import Collection, Sequence
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
        tensor = self._of_rows(tensor)
        if self.start is not None:
            return tensor[:, self.start : self.start + self.length]
        return tensor.gather(1, self.columns)

    def of_keys(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor of the canvas at the rows of this pass and the columns that the queries attend to."""
        return self._of_rows(tensor)[:, : self.num_keys]

    def _of_rows(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self.rows is None else tensor[self.rows]


class Planner:
    """Plans passes without a cache: all of them compute the whole canvas, up to the end of the suffix."""

    # Rows that are about level compute the same columns: fewer than so many times those that a row needs.
    most_in_step = 2.0

    def __init__(self, canvas: Canvas, model: PreTrainedModel):
        self.canvas = canvas
        self.model = model
        # How many columns before a token the column is that predicts it.
        self.shift = int(model.shift_logits or model.predicts_next_block)
        self.suffix_length = canvas.config.suffix_length

    def plan(self, wanted: torch.LongTensor) -> list[Pass]:
        """Returns passes that score `wanted` columns, `(rows, columns)`, of open blocks or further masks.

        Passes that only store keys and values come first, and score nothing. A plan of the same canvas is the same
        again until [`note`] is called.
        """
        return [self.over_run(None, wanted, slice(0, self.end()), self.end())]

    def over_rows(self, rows: list[int], wanted: torch.LongTensor) -> list[Pass]:
        """Returns the passes of some rows, which are planned as one."""
        return self.plan(wanted)

    def note(self) -> None:
        """Notes that the planned passes have run, and what they have stored. The canvas has not moved on yet."""

    def groups(self) -> dict[str, list[int]]:
        """Returns the rows of each kind of pass when passes are compiled: "whole", "open", or "eager" for any other.

        A pass over the open blocks computes the same number of columns every time.
        """
        return {"whole": list(range(len(self.canvas)))}

    def compiled(self, kind: str, wanted: torch.LongTensor, is_of_pass: torch.BoolTensor | None) -> Pass:
        """Returns the pass of one of the first two kinds over all lines, of which it keeps those of some rows.

        It is compiled, too: it depends on nothing but tensors, the settings and the width.
        """
        canvas = self.canvas
        if kind == "open":
            columns, kept = self._open_columns()
        else:
            columns = canvas.column_ids.expand(len(wanted), -1)
            kept = torch.ones_like(columns, dtype=torch.bool)
        if is_of_pass is not None:
            kept = kept & is_of_pass[:, None]
        return self.over(None, wanted, columns, canvas.width, kept=kept)

    def _open_columns(self) -> tuple[torch.LongTensor, torch.BoolTensor]:
        """Returns the columns that a compiled pass over the open blocks computes, and those that it stores."""
        raise NotImplementedError

    def _last_columns(self, size: int, ends: torch.LongTensor) -> torch.LongTensor:
        """Returns `size` columns up to `ends` of each row."""
        size = min(size, self.canvas.width)
        return (ends - size).clamp(0, self.canvas.width - size) + self.canvas.column_ids[:size]

    def end(self) -> int:
        """Returns the column after the last one that any row computes and sees."""
        canvas = self.canvas
        if self.suffix_length is None:
            return canvas.width
        last = max(canvas.open_edges(row)[1] for row in range(len(canvas)))
        return min(last + self.suffix_length, canvas.width)

    def open_ends(self) -> torch.LongTensor:
        """Returns the column after the open blocks of each row, `(rows, 1)`, as a tensor."""
        return (self.canvas.block <= self.canvas.open_to[:, None]).sum(dim=1, keepdim=True)

    def mask(self, planned: Pass) -> Any:
        """Returns the attention mask of a pass, for models of this package in the form that their attention takes.

        transformers would create it in every pass, and wait for the device to see whether it masks anything.
        """
        if planned.seen is None:
            return None
        model = self.model
        config = model.config.get_text_config()
        seen = planned.of_keys(planned.seen)

        if self.canvas.attention == "full" or not model.takes_visibility:
            return as_key_mask(config, seen, planned.length, model.dtype) if model.is_native else seen

        return as_attention_mask(config, seen[:, None].bool() & self.visible(planned), model.dtype)

    def visible(self, planned: Pass) -> torch.BoolTensor:
        """Returns whether each column of a pass sees each key by its block, `(rows, columns, keys)`."""
        blocks = self.canvas.mask_blocks()
        return planned.of_keys(blocks)[:, None] <= planned.of(blocks)[:, :, None]

    def over_run(self, rows: torch.LongTensor | None, wanted: torch.LongTensor, run: slice, num_keys: int) -> Pass:
        """Returns a pass over the same run of columns of some rows."""
        return self.over(rows, wanted, self.canvas.column_ids[None, run], num_keys, start=run.start)

    def over(
        self,
        rows: torch.LongTensor | None,
        wanted: torch.LongTensor,
        columns: torch.LongTensor,
        num_keys: int,
        start: int | None = None,
        kept: torch.BoolTensor | None = None,
    ) -> Pass:
        """Returns a pass over `columns` of some rows, with the mask of these, which scores what is `wanted` there."""
        wanted = wanted if rows is None else wanted[rows]
        # Columns that only fill up a row may lie outside.
        scored = (wanted - columns[:, :1]).clamp(0, columns.shape[1] - 1)
        planned = Pass(
            rows=rows,
            columns=columns.expand(len(wanted), -1),
            scored=scored,
            num_keys=num_keys,
            seen=self._seen(),
            start=start,
            kept=kept,
        )
        return planned._replace(mask=self.mask(planned))

    def up_to_open_blocks(
        self, rows: list[int], starts: Sequence[int], wanted: torch.LongTensor, num_after: int = 0
    ) -> list[Pass]:
        """Returns passes over the columns of some rows from `starts` to `num_after` columns after their open blocks.

        Rows that are about level ([`most_in_step`]) compute the same columns, in several runs if these are many.
        """
        canvas = self.canvas
        index = None if len(rows) == len(canvas) else torch.tensor(rows).to(wanted.device)
        first_open = min(canvas.open_edges(row)[0] for row in rows)
        ends = [canvas.open_edges(row)[1] + num_after for row in rows]
        longest = max(end - start for start, end in zip(starts, ends, strict=True))
        level = slice(min(starts), max(ends))

        num_columns = level.stop - level.start
        if num_columns == longest or num_columns < self.most_in_step * longest:
            # Scores come from the last run, the column before the open blocks included.
            *runs, last = self._cut(level, first_open - 1)
            passes = [self.over_run(index, wanted[:, :0], run, run.stop) for run in runs]
            return [*passes, self.over_run(index, wanted, last, last.stop)]

        first = (self.open_ends() + num_after - longest).clamp(min=0)
        if index is not None:
            first = first[index]
        return [self.over(index, wanted, first + canvas.column_ids[:longest], level.stop)]

    def _cut(self, columns: slice, first_scored: int) -> list[slice]:
        """Cuts columns into runs, of which the last has all from column `first_scored` on.

        A block that is cut is computed again by the next run, as a whole. Where blocks choose their experts, none is.
        """
        config = self.canvas.config
        longest = max(_LONGEST_RUN, 4 * config.block_length)
        start = columns.start
        if config.cache_implementation == "none" or not moves_blocks(self.model):
            return [columns]

        runs = []
        while columns.stop - start > longest and first_scored - start > config.block_length:
            stop = min(start + longest, first_scored)
            runs.append(slice(start, stop))
            start = stop - config.block_length
        return [*runs, slice(start, columns.stop)]

    def _seen(self) -> torch.Tensor | None:
        """Returns which columns are seen, `(all rows, width)`, or `None` if all are."""
        canvas = self.canvas
        if self.suffix_length is not None:
            return canvas.attention_mask * (canvas.column_ids < self.open_ends() + self.suffix_length)
        return canvas.attention_mask if canvas.is_padded or canvas.attention != "full" else None


class ApproximatePlanner(Planner):
    """Computes the whole canvas when a row enters a block, and in between only its open blocks.

    With the "prefix" cache all that follows the open blocks is computed, too; with "dual" its keys and values are
    those of the last whole pass.
    """

    def __init__(self, canvas: Canvas, model: PreTrainedModel):
        super().__init__(canvas, model)
        self.suffix_is_cached = canvas.config.cache_implementation == "dual"
        self.refresh_interval = canvas.config.cache_refresh_interval
        # By row: its open blocks when it was last computed as a whole, and the passes since then.
        self._computed: dict[int, tuple[tuple[int, int], int]] = {}
        # The same after the planned passes.
        self._planned: dict[int, tuple[tuple[int, int], int]] = {}

    def groups(self) -> dict[str, list[int]]:
        canvas = self.canvas
        due: list[int] = []
        others: list[int] = []
        self._planned = {}
        for row, (row_id, status) in enumerate(zip(canvas.row_ids, canvas.status, strict=True)):
            open_blocks = (status.open_from, status.open_to)
            known, num_passes = self._computed.get(row_id, (None, 0))
            if known != open_blocks or num_passes == self.refresh_interval:
                due.append(row)
                num_passes = 0
            else:
                others.append(row)
            self._planned[row_id] = (open_blocks, num_passes + 1)
        return {kind: rows for kind, rows in (("whole", due), ("open", others)) if rows}

    def plan(self, wanted: torch.LongTensor) -> list[Pass]:
        canvas = self.canvas
        groups = self.groups()
        due = groups.get("whole", [])
        others = groups.get("open", [])
        due_index, other_index = None, None
        if due and others:
            # One copy to the device.
            both = torch.tensor([*due, *others]).to(wanted.device)
            due_index, other_index = both.split([len(due), len(others)])

        passes = []
        if due:
            passes.append(self.over_run(due_index, wanted, slice(0, self.end()), canvas.width))
        if others:
            passes.append(self._over_open_blocks(other_index, others, wanted))
        return passes

    def note(self) -> None:
        self._computed = self._planned

    def _open_columns(self) -> tuple[torch.LongTensor, torch.BoolTensor]:
        canvas = self.canvas
        config = canvas.config
        start = (canvas.block < canvas.open_from[:, None]).sum(dim=1, keepdim=True)
        if self.suffix_is_cached:
            end = self.open_ends()
            size = config.block_length * config.max_active_blocks + self.shift
            columns = self._last_columns(size, start - self.shift + size)
            return columns, (columns >= start) & (columns < end)
        # All that any row computes after its prompt, so that there is one shape.
        longest = config.max_new_tokens or canvas.width
        columns = self._last_columns(longest + self.shift, torch.full_like(start, canvas.width))
        return columns, columns >= start

    def _over_open_blocks(self, index: torch.LongTensor | None, rows: list[int], wanted: torch.LongTensor) -> Pass:
        """Returns a pass over the open blocks of some rows, which `index` picks, and what it takes in after them.

        All rows compute as many columns as the longest one, so shorter ones compute others, which are not kept.
        """
        canvas = self.canvas
        num_after = 0
        if not self.suffix_is_cached:
            num_after = canvas.width if self.suffix_length is None else self.suffix_length

        # The open blocks, the column that predicts the first token of them, and what follows.
        sizes = []
        for row in rows:
            first_open, end_open = canvas.open_edges(row)
            first = max(first_open - self.shift, 0)
            sizes.append(min(end_open + num_after, canvas.width) - first)
        size = max(sizes)
        is_level = not self.shift and min(sizes) == size

        start = (canvas.block < canvas.open_from[:, None]).sum(dim=1, keepdim=True)
        end = self.open_ends() + num_after
        if index is not None:
            start = start[index]
            end = end[index]
        columns = (start - self.shift).clamp(0, canvas.width - size) + canvas.column_ids[:size]
        kept = None if is_level else (columns >= start) & (columns < end)
        return self.over(index, wanted, columns, canvas.width, kept=kept)


class BlockPlanner(Planner):
    """Computes the open blocks of a model that sees nothing after them; the cache has all before. This is exact.

    A block is stored when its row has left it, by the first pass over the next block, and the prompt by the very first
    pass: storing takes no pass of its own. Computing more columns than needed changes nothing, because no column sees
    a later block. So the last column before the open blocks is computed again in every pass in which it predicts
    their first token, and a long prompt is stored in several runs.
    """

    def __init__(self, canvas: Canvas, model: PreTrainedModel):
        super().__init__(canvas, model)
        # By row id, how many columns at its right end the cache lacks.
        self._missing: dict[int, int] = {}

    def plan(self, wanted: torch.LongTensor) -> list[Pass]:
        passes = []
        for rows in known_and_new(self.canvas.row_ids, self._missing):
            passes += self.over_rows(rows, wanted)
        return passes

    def over_rows(self, rows: list[int], wanted: torch.LongTensor) -> list[Pass]:
        starts = [self._start(row) for row in rows]
        return self.up_to_open_blocks(rows, starts, wanted, self._num_after())

    def _start(self, row: int) -> int:
        """Returns the first column of a row that the cache lacks."""
        canvas = self.canvas
        whole = canvas.width - canvas.prompt_start(row)
        return canvas.width - self._missing.get(canvas.row_ids[row], whole)

    def groups(self) -> dict[str, list[int]]:
        canvas = self.canvas
        starts = [self._start(row) for row in range(len(canvas))]
        ends = [canvas.open_edges(row)[1] + self._num_after() for row in range(len(canvas))]
        return near_and_far(starts, ends, self._num_open_columns())

    def _num_after(self) -> int:
        """Returns how many columns after the open blocks a pass computes."""
        return 0

    def _num_open_columns(self) -> int:
        # The blocks that were open in the last pass, and those that are now.
        config = self.canvas.config
        return 2 * config.block_length * config.max_active_blocks + self.shift

    def _open_columns(self) -> tuple[torch.LongTensor, torch.BoolTensor]:
        columns = self._last_columns(self._num_open_columns(), self.open_ends() + self._num_after())
        return columns, torch.ones_like(columns, dtype=torch.bool)

    def note(self) -> None:
        canvas = self.canvas
        self._missing = {}
        for row, row_id in enumerate(canvas.row_ids):
            # Not left of the row: its padding shrinks when a longer row leaves.
            start = max(self._end_of_stored(row), canvas.prompt_start(row))
            self._missing[row_id] = canvas.width - start

    def _end_of_stored(self, row: int) -> int:
        """Returns the column after those of a row that the planned pass stores for good."""
        return self.canvas.open_edges(row)[0] - self.shift


def known_and_new(row_ids: Sequence[int], known: Collection[int]) -> list[list[int]]:
    """Returns the numbers of the rows that are known, and of those that are new; none of the two is empty."""
    is_known = [row_id in known for row_id in row_ids]
    groups = [[row for row, value in enumerate(is_known) if value is wanted] for wanted in (True, False)]
    return [rows for rows in groups if rows]


def near_and_far(starts: Sequence[int], ends: Sequence[int], size: int) -> dict[str, list[int]]:
    """Returns the rows that compute at most `size` columns as "open", and the others as "eager"."""
    groups: dict[str, list[int]] = {}
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        kind = "open" if end - start <= size else "eager"
        groups.setdefault(kind, []).append(row)
    return groups


def make_planner(canvas: Canvas, model: PreTrainedModel) -> Planner:
    """Returns the planner of the cache that the settings of a canvas ask for."""
    planners = {"none": Planner, "prefix": ApproximatePlanner, "dual": ApproximatePlanner, "block": BlockPlanner}
    return planners[canvas.config.cache_implementation](canvas, model)
