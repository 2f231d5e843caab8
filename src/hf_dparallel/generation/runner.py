# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Runs passes: the model, its masks and its cache, compiled or not."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask

from ..attention_masks import as_attention_mask
from .cache import WindowCache
from .canvas import Canvas
from .parts import RowPart
from .plan import Blocks, Pass, WholeCanvas, Windows


_PLANNERS = {"none": WholeCanvas, "prefix": Windows, "dual": Windows, "block": Blocks}


class Runner:
    """Runs the passes that the settings of a canvas ask for, extended by the parts."""

    # Replaces the model's own forward pass.
    forward: Callable[..., Any] | None = None
    # The index of all rows in a pass, a tensor; `None` takes them as they are.
    all_rows: torch.LongTensor | None = None

    def __init__(self, model: PreTrainedModel, canvas: Canvas, parts: Sequence[RowPart]):
        self.model, self.canvas, self.parts = model, canvas, parts
        self.lead = int(model.shift_logits or model.predicts_next_block)
        implementation = canvas.config.cache_implementation
        self.planner = _PLANNERS[implementation](canvas, self.lead)
        has_cache = implementation != "none"
        self.cache = WindowCache(model.config.get_text_config().num_hidden_layers) if has_cache else None
        self._cached_rows: list[int] = []
        # The masks of passes over all rows, which hold as long as the same columns are seen.
        self._seen: torch.Tensor | None = None
        self._masks: dict[Any, Any] = {}

    def logits(self, wanted: torch.LongTensor) -> torch.Tensor:
        """Returns the scores at some columns of each row, `(rows, columns, vocab_size)` for `(rows, columns)`."""
        self.fit_rows(len(self.canvas))
        if self.canvas.first_alone and not self.model.shift_logits:
            # The logits of the column before score the first token of a block.
            wanted = wanted - self.canvas.is_first.gather(1, wanted).long()
        passes = self.planner.plan(wanted)
        for part in self.parts:
            passes = [part.extend(planned) for planned in passes]
        logits = [self.run(planned) for planned in passes]
        if len(passes) == 1:
            return logits[0]
        order, joined = torch.cat([planned.rows for planned in passes]), torch.cat(logits)
        return torch.empty_like(joined).index_copy_(0, order, joined)

    def fit_rows(self, num_rows: int) -> None:
        """Fits the cache to the rows that have left and entered the canvas, and to passes of `num_rows` rows."""
        canvas, cache = self.canvas, self.cache
        if cache is None:
            return
        if (self._cached_rows, *cache.shape) != (canvas.row_ids, num_rows, canvas.width):
            row_of = {row_id: row for row, row_id in enumerate(self._cached_rows)}
            kept = [row_of[row_id] for row_id in canvas.row_ids if row_id in row_of]
            cache.resize(kept, num_rows, canvas.width, canvas.sequences.device)
        self._cached_rows = list(canvas.row_ids)

    def run(self, planned: Pass) -> torch.Tensor:
        """Runs a pass, and returns the logits of its scored tokens."""
        input_ids, position_ids = planned.of(self.canvas.sequences), planned.of(self.canvas.position_ids)
        mask = self.mask(planned)
        if planned.appended is not None:
            input_ids = torch.cat([input_ids, planned.appended.input_ids], dim=1)
            position_ids = torch.cat([position_ids, planned.appended.position_ids], dim=1)
        inputs: dict[str, Any] = {"position_ids": position_ids, "attention_mask": mask}
        if planned.embed is None:
            inputs["input_ids"] = input_ids
        else:
            inputs["inputs_embeds"] = planned.embed(planned, input_ids)
        if self.cache is not None:
            # The cache has as many rows as a pass over all of them.
            self.cache.select(planned._replace(rows=None if planned.rows is self.all_rows else planned.rows))
            inputs["past_key_values"] = self.cache
        return self.model.score(inputs, planned.scored, forward=self.forward)

    def mask(self, planned: Pass) -> Any:
        """Returns the mask of a pass, for models of this package in the form that their attention takes.

        transformers would create it in every pass, and wait for the device to see whether it masks anything.
        """
        if planned.appended is not None:
            return planned.appended.mask
        if planned.seen is None:
            return None
        if not self.model.is_native and (self.canvas.attention == "full" or not self.model.takes_visibility):
            return planned.keys.of(planned.seen)
        if self._seen is not planned.seen:
            self._seen, self._masks = planned.seen, {}
        if self.canvas.attention != "full":
            return self._block_mask(planned)
        return self._bidirectional_mask(planned)

    def _bidirectional_mask(self, planned: Pass) -> Any:
        if planned.length not in self._masks:
            self._masks[planned.length] = self._make_bidirectional(planned._replace(rows=self.all_rows))
        mask = self._masks[planned.length]
        if planned.rows is self.all_rows or mask is None:
            return mask
        # A block mask of flex attention cannot be indexed.
        return mask[planned.rows] if torch.is_tensor(mask) else self._make_bidirectional(planned)

    def _make_bidirectional(self, planned: Pass) -> Any:
        seen = planned.keys.of(planned.seen)
        return create_bidirectional_mask(
            self.model.config.get_text_config(),
            torch.empty(len(seen), planned.length, 0, dtype=self.model.dtype, device=seen.device),
            seen,
            # The mask hides something, or compiled code needs a mask in every pass.
            allow_is_bidirectional_skip=False,
        )

    def _block_mask(self, planned: Pass) -> Any:
        if planned.rows is not self.all_rows:
            return self._make_block_mask(planned)
        columns, canvas = planned.columns, self.canvas
        key: tuple = (columns.start, columns.stop) if isinstance(columns, slice) else (columns,)
        if canvas.attention == "causal_past":
            # Decided blocks have a different mask from open ones.
            key += tuple(status.open_from for status in canvas.status)
        if key not in self._masks:
            self._masks = {key: self._make_block_mask(planned)}
        return self._masks[key]

    def _make_block_mask(self, planned: Pass) -> Any:
        canvas, keys, blocks = self.canvas, planned.keys, self.canvas.mask_blocks()
        is_dense = canvas.is_padded or self.planner.uniform or not self.model.is_native
        if isinstance(planned.columns, slice) and not is_dense:
            last_start = max(canvas.open_edges(row)[0] for row in range(len(canvas)))
            if last_start <= planned.columns.start and planned.length <= canvas.config.block_length:
                # The last block sees everything.
                return {"full_attention": None}
        key_block, query_block = keys.of(blocks), planned.of(blocks)
        visible = keys.of(planned.seen)[:, None].bool() & (key_block[:, None] <= query_block[:, :, None])
        return as_attention_mask(self.model.config.get_text_config(), visible, self.model.dtype)


class CompiledRunner(Runner):
    """Runs passes of few shapes by compiled code: every pass computes all rows, in windows of a few lengths."""

    all_rows: torch.LongTensor

    def __init__(self, model: PreTrainedModel, canvas: Canvas, parts: Sequence[RowPart]):
        super().__init__(model, canvas, parts)
        self.forward = model.get_compiled_call(canvas.config.compile_config)
        self.planner.uniform = True
        self._num_rows = 1
        self._row_ids: list[int] = []
        if self.cache is not None:
            self.cache = _borrow_cache(self, self.cache)

    def fit_rows(self, num_rows: int) -> None:
        # Code is compiled for each number of rows: the most so far, rounded up to a power of two.
        self._num_rows = max(self._num_rows, 1 << (num_rows - 1).bit_length())
        if self._row_ids != self.canvas.row_ids:
            self._row_ids = list(self.canvas.row_ids)
            # The last row is repeated.
            self.all_rows = torch.arange(self._num_rows, device=self.canvas.masked.device).clamp(max=num_rows - 1)
        super().fit_rows(self._num_rows)

    def run(self, planned: Pass) -> torch.Tensor:
        padded = self._padded(planned)
        torch.compiler.cudagraph_mark_step_begin()
        logits = super().run(padded)
        # Compiled code reuses the memory of its result, which an index by a tensor copies.
        rows = slice(len(self.canvas)) if planned.rows is None else planned.rows
        return logits[rows, : planned.scored.shape[1]]

    def _padded(self, planned: Pass) -> Pass:
        """Returns the pass over all rows. The cache keeps only what `planned` computes."""
        source = self.all_rows
        if planned.rows is not None:
            # The index of each row in the pass. A row that is absent (-1) computes the first one again.
            absent = torch.full((len(self.canvas),), -1, device=source.device)
            source = absent.index_copy(0, planned.rows, torch.arange(len(planned.rows), device=source.device))[source]
        if self.cache is None:
            padded = planned._replace(scored=planned.scored[source])
        else:
            padded = self._widened(planned, source.clamp(min=0), source >= 0)
        # As many scored columns as possible, so that there is one shape to compile.
        missing = -planned.scored.shape[1] % self.canvas.config.block_length
        seen = self.canvas.attention_mask if planned.seen is None else planned.seen
        return padded._replace(rows=self.all_rows, scored=pad(padded.scored, (0, missing)), seen=seen)

    def _widened(self, planned: Pass, source: torch.LongTensor, is_present: torch.BoolTensor) -> Pass:
        """Returns the `source` rows of a pass, widened to 1, 2, 4, ... blocks. Only columns of `planned` are kept."""
        width, length, block_length = self.canvas.width, planned.length, self.canvas.config.block_length
        num_blocks = -(-(length - self.lead) // block_length)
        size = min(block_length * (1 << (num_blocks - 1).bit_length()) + self.lead, width)
        scored, offsets = planned.scored[source], torch.arange(size, device=source.device)
        start = (planned.first + torch.zeros_like(planned.scored[:, :1]))[source]
        first = start.clamp(max=width - size)
        inside = first + offsets - start
        kept = (inside >= 0) & (inside < length) & is_present[:, None]
        if planned.kept is not None:
            kept &= planned.kept[source].gather(1, inside.clamp(0, length - 1))
        return planned._replace(columns=first + offsets, scored=scored + start - first, num_keys=width, kept=kept)


# By model, its unused caches for compiled code: a CUDA graph reads keys and values at the addresses it recorded.
_CACHES: weakref.WeakKeyDictionary[PreTrainedModel, list[WindowCache]] = weakref.WeakKeyDictionary()


def _borrow_cache(runner: CompiledRunner, new: WindowCache) -> WindowCache:
    """Returns an unused cache of the model, or `new`, and takes the cache back when `runner` is deleted."""
    model = runner.model
    free = _CACHES.setdefault(model, [])
    cache = free.pop() if free else new
    if not cache.layers[0].is_initialized:
        cache.allocate(model.config.get_text_config(), model.dtype, model.device)
    weakref.finalize(runner, free.append, cache)
    return cache
