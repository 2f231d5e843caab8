# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Keys and values of whole sequences, of which a pass replaces a part."""

import torch
from torch.nn.functional import pad
from transformers.cache_utils import Cache, CacheLayerMixin

from .plan import Pass


class WindowLayer(CacheLayerMixin):
    """Keys and values of one layer, `(rows, heads, width, head_dim)` each.

    Device, dtype and number of heads come from the first states, not from the config: layers may be on several
    devices, run under autocast, or hold only some of the heads.
    """

    is_sliding = False
    shape = (0, 0)
    planned: Pass

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocates the window for keys and values like these."""
        rows, width = self.shape
        self.keys, self.values = (
            states.new_zeros(rows, states.shape[1], width, states.shape[3]) for states in (key_states, value_states)
        )
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        """Replaces the planned columns, and returns the keys and values that their rows attend to."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self._updated(self.keys, key_states), self._updated(self.values, value_states)

    def resize(self, kept_rows: torch.LongTensor | None, num_rows: int, width: int) -> None:
        """Keeps `kept_rows` (all if `None`), makes room for `num_rows`, and fits the left edge to `width`."""
        self.shape = (num_rows, width)
        if not self.is_initialized:
            return
        for name in ("keys", "values"):
            kept = getattr(self, name)
            # Cut first, without a copy: the index or the padding then copies fewer columns.
            kept = kept[:, :, max(kept.shape[2] - width, 0) :]
            if kept_rows is not None:
                kept = kept[kept_rows.to(kept.device)]
            missing = (width - kept.shape[2], num_rows - len(kept))
            if any(missing):
                kept = pad(kept, (0, 0, missing[0], 0, 0, 0, 0, missing[1]))
            setattr(self, name, kept)

    def _updated(self, kept: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        planned, start = self.planned, self.planned.start
        # The layers of a model may be on several devices.
        rows = None if planned.rows is None else planned.rows.to(kept.device)
        if start is not None:
            kept[slice(None) if rows is None else rows, :, start : start + planned.length] = states
        else:
            line = (torch.arange(len(kept), device=kept.device) if rows is None else rows)[:, None]
            columns = planned.columns.to(kept.device)
            # Two index tensors around a slice: the indexed dimensions come first, (rows, columns, heads, head_dim).
            states = states.transpose(1, 2)
            if planned.kept is not None:
                states = torch.where(planned.kept[..., None, None].to(kept.device), states, kept[line, :, columns])
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
        return self.shape[1]


class WindowCache(Cache):
    """Keys and values of all positions of the rows being decoded, kept from one pass to the next.

    Before a forward pass, [`select`] sets the columns that it computes and whose keys and values it replaces. With the
    suffix as the window this is the prefix cache of Fast-dLLM, with the block as the window its dual cache
    (https://huggingface.co/papers/2505.22618); where nothing sees later blocks, the exact one of block-causal models.
    """

    def __init__(self, num_layers: int):
        super().__init__(layers=[WindowLayer() for _ in range(num_layers)])

    def select(self, planned: Pass) -> None:
        """Sets the rows and columns that the next forward pass computes."""
        for layer in self.layers:
            layer.planned = planned

    def resize(self, kept_rows: list[int], num_rows: int, width: int, device: torch.device) -> None:
        """Keeps `kept_rows`, in this order, makes room for `num_rows`, and fits the left edge to `width`."""
        # One copy to the device, however many layers there are.
        is_all = kept_rows == list(range(self.layers[0].shape[0]))
        index = None if is_all else torch.tensor(kept_rows, dtype=torch.long, device=device)
        for layer in self.layers:
            layer.resize(index, num_rows, width)
