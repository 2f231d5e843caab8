# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Keys and values of whole sequences, of which a pass replaces a part."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import pad
from transformers.cache_utils import Cache, CacheLayerMixin

from .plan import Pass


class CanvasLayer(CacheLayerMixin):
    """Keys and values of one layer, `(rows, heads, width, head_dim)` each.

    Device, dtype and number of heads come from the first states, not from the config: layers may be on several
    devices, run under autocast, or hold only some of the heads.
    """

    is_sliding = False
    keys: Any
    values: Any
    planned: Any

    def __init__(self, is_static: bool) -> None:
        super().__init__()
        self.is_static = is_static
        # The rows that it has, one a line, and how many lines and columns.
        self.row_ids: list[int] = []
        self.num_lines = 0
        self.width = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Makes room for keys and values like these."""
        lines = self.num_lines
        keys = key_states.new_zeros(lines, key_states.shape[1], self.width, key_states.shape[3])
        values = value_states.new_zeros(lines, value_states.shape[1], self.width, value_states.shape[3])
        self._keep(keys, values)
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        """Replaces the planned columns, and returns the keys and values that their rows attend to."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self._updated(self.keys, key_states), self._updated(self.values, value_states)

    def resize(self, kept_rows: torch.LongTensor | None, num_lines: int, width: int) -> None:
        """Keeps `kept_rows` (all if `None`), makes room for `num_lines`, and fits the left edge to `width`."""
        if not self.is_initialized:
            return
        keys = _resized(self.keys, kept_rows, num_lines, width)
        values = _resized(self.values, kept_rows, num_lines, width)
        self._keep(keys, values)

    def reset(self) -> None:
        """Forgets all rows. The next ones are kept in the same memory if there is enough of it."""
        self.planned = None
        self.row_ids = []
        self.is_initialized = False

    def _keep(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        if self.is_static:
            keys = _in_place_of(self.keys, keys)
            values = _in_place_of(self.values, values)
            # CUDA graphs may write to them, and are recorded for one address.
            torch._dynamo.mark_static_address(keys, guard=False)
            torch._dynamo.mark_static_address(values, guard=False)
        self.keys = keys
        self.values = values

    def _updated(self, kept: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        planned = self.planned
        # The layers of a model may be on several devices.
        rows = None if planned.rows is None else planned.rows.to(kept.device)

        if planned.start is not None:
            run = slice(planned.start, planned.start + planned.length)
            kept[slice(None) if rows is None else rows, :, run] = states
        else:
            line = torch.arange(len(kept), device=kept.device) if rows is None else rows
            line = line[:, None]
            columns = planned.columns.to(kept.device)
            # Two index tensors around a slice: the indexed dimensions come first, (rows, columns, heads, head_dim).
            states = states.transpose(1, 2)
            if planned.kept is not None:
                is_kept = planned.kept[..., None, None].to(kept.device)
                states = torch.where(is_kept, states, kept[line, :, columns])
            kept[line, :, columns] = states

        seen = kept[:, :, : planned.num_keys]
        return seen if rows is None else seen[rows]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns the number of keys, and 0: keys begin at the left edge."""
        return self.planned.num_keys, 0

    def get_seq_length(self) -> int:
        """Returns 0: positions are passed explicitly."""
        return 0

    def get_max_length(self) -> int:
        """Returns the width."""
        return self.width


class CanvasCache(Cache):
    """Keys and values of all positions of the rows being decoded, kept from one pass to the next.

    Before a forward pass, [`select`] sets the columns that it computes and whose keys and values it replaces. Where
    all but the prompt are computed this is the prefix cache of Fast-dLLM, where only the open blocks are, its dual
    cache (https://huggingface.co/papers/2505.22618); where nothing sees later blocks, the exact one of block-causal
    models.
    """

    layers: list[CanvasLayer]

    def __init__(self, num_layers: int, is_static: bool = False):
        super().__init__(layers=[CanvasLayer(is_static) for _ in range(num_layers)])

    def select(self, planned: Pass | None) -> None:
        """Sets the rows and columns that the next forward pass computes; `None` lets go of the last ones."""
        for layer in self.layers:
            layer.planned = planned

    def fit(self, row_ids: Sequence[int], num_lines: int, width: int, device: torch.device) -> None:
        """Fits the cache to the rows that have left and entered the canvas; widths differ at the left edge."""
        # If it was interrupted before, some layers are done.
        stale = [layer for layer in self.layers if layer.row_ids != row_ids or layer.width != width]
        if not stale:
            return

        before = {row_id: row for row, row_id in enumerate(stale[0].row_ids)}
        kept_rows = [before[row_id] for row_id in row_ids if row_id in before]
        index = None
        if kept_rows != list(before.values()):
            # One copy to the device, however many layers there are.
            index = torch.tensor(kept_rows, dtype=torch.long, device=device)
        for layer in stale:
            layer.resize(index, num_lines, width)
            layer.row_ids = list(row_ids)
            layer.num_lines = num_lines
            layer.width = width


def _resized(kept: torch.Tensor, rows: torch.LongTensor | None, num_lines: int, width: int) -> torch.Tensor:
    # Cut first, without a copy: the index or the padding then copies fewer columns.
    kept = kept[:, :, max(kept.shape[2] - width, 0) :]
    if rows is not None:
        kept = kept[rows.to(kept.device)]
    num_columns = width - kept.shape[2]
    num_new = num_lines - len(kept)
    if not num_columns and not num_new:
        return kept
    return pad(kept, (0, 0, num_columns, 0, 0, 0, 0, num_new))


def _in_place_of(kept: torch.Tensor | None, states: torch.Tensor) -> torch.Tensor:
    """Returns `states`, copied to where others are kept if there is room for them."""
    if kept is None or (kept.dtype, kept.device) != (states.dtype, states.device):
        return states
    memory = kept.untyped_storage()
    if memory.nbytes() < states.nbytes:
        return states
    return kept.new_empty(0).set_(memory, 0, states.shape).copy_(states)
