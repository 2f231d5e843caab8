# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Plans the passes of a model whose encoder stores everything before the open block."""

import torch

from .canvas import Canvas
from .plan import Pass, WholeCanvas


class EncodedPast(WholeCanvas):
    """Computes the open block; the encoder has stored everything before it. This is exact.

    The encoder runs over the prompt when a row enters, and over a block when its row has left the block. Without a
    cache it runs over the prompt and all finished blocks before each pass.
    """

    def __init__(self, canvas: Canvas, lead: int):
        super().__init__(canvas, lead)
        self.keeps = canvas.config.cache_implementation != "none"
        # By row, the number of columns at its right end that are not stored.
        self._missing: dict[int, int] = {}

    def stored(self) -> list[Pass]:
        canvas, missing = self.canvas, self._missing if self.keeps else {}
        # By the column at which the open block begins: rows, and the first column to store.
        groups: dict[int, list[tuple[int, int]]] = {}
        self._missing = {}
        for row, row_id in enumerate(canvas.row_ids):
            end = canvas.open_edges(row)[0]
            start = canvas.width - missing.get(row_id, canvas.width - canvas.prompt_start(row))
            if start < end:
                groups.setdefault(end, []).append((row, start))
            self._missing[row_id] = canvas.width - end
        passes = []
        for end, group in groups.items():
            rows, starts = zip(*group, strict=True)
            index = torch.tensor(rows, device=canvas.column_ids.device)
            nothing = index.new_empty(len(rows), 0)
            passes.append(Pass(index, slice(min(starts), end), nothing, end, canvas.attention_mask))
        return passes

    def plan(self, wanted: torch.LongTensor) -> list[Pass]:
        canvas = self.canvas
        num_keys = max(canvas.open_edges(row)[0] for row in range(len(canvas)))
        # The open block, whole, from left to right; the model sees it beside these keys.
        seen = canvas.attention_mask * (canvas.block < canvas.open_from[:, None])
        scored = canvas.column_ids[: wanted.shape[1]].expand_as(wanted)
        return [Pass(None, wanted, scored, num_keys, seen)]
