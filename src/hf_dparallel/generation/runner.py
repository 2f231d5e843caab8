# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Runs passes: the model and its cache, compiled or not."""

import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import PreTrainedModel

from .cache import WindowCache
from .canvas import Canvas
from .mask_gate import gate_adapters
from .parts import RowPart
from .plan import Blocks, MaskWindows, Pass, WholeCanvas, Windows


_PLANNERS = {"none": WholeCanvas, "prefix": Windows, "dual": Windows, "block": Blocks}


class Runner:
    """Runs the passes that the settings of a canvas ask for, extended by the parts."""

    # Replaces the model's own forward pass.
    forward: Callable[..., Any] | None = None

    def __init__(self, model: PreTrainedModel, canvas: Canvas, parts: Sequence[RowPart]):
        self.model, self.canvas, self.parts = model, canvas, parts
        implementation = canvas.config.cache_implementation
        self.planner = (MaskWindows if canvas.moves_windows else _PLANNERS[implementation])(canvas, model)
        self.gate = gate_adapters(model)
        has_cache = implementation != "none"
        self.cache = WindowCache(model.config.get_text_config().num_hidden_layers) if has_cache else None
        self._cached_rows: list[int] = []

    def logits(self, wanted: torch.LongTensor) -> torch.Tensor:
        """Returns the scores at some columns of each row, `(rows, columns, vocab_size)` for `(rows, columns)`."""
        self.fit_rows(len(self.canvas))
        if self.canvas.first_alone and not self.model.shift_logits:
            # The logits of the column before score the first token of a block.
            wanted = wanted - self.canvas.is_first.gather(1, wanted).long()
        passes = self.planner.plan(wanted)
        for part in self.parts:
            passes = [part.extend(planned) for planned in passes]
        results = [(planned.rows, self.run(planned)) for planned in passes]
        rows, logits = zip(*(result for result in results if result[1].shape[1]), strict=True)
        if len(logits) == 1:
            return logits[0]
        order, joined = torch.cat(rows), torch.cat(logits)
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

    def forget(self) -> None:
        """Forgets what the cache stores, as after a pass that failed half-way: the next one computes whole rows."""
        planner = type(self.planner)(self.canvas, self.model)
        planner.always_masks = self.planner.always_masks
        self.planner = planner

    def run(self, planned: Pass) -> torch.Tensor:
        """Runs a pass, and returns the logits of its scored tokens."""
        return self.score(planned, self.inputs(planned))

    def inputs(self, planned: Pass) -> dict[str, Any]:
        """Returns the arguments of the forward pass, without the cache."""
        canvas = self.canvas
        ids = [planned.of(canvas.input_ids()), planned.of(canvas.position_ids)]
        if planned.appended is not None:
            ids = [torch.cat(parts, dim=1) for parts in zip(ids, planned.appended, strict=True)]
        input_ids, position_ids = ids
        inputs = {"position_ids": position_ids, "attention_mask": planned.mask}
        if canvas.moves_windows:
            # Scored places are those of the hidden states.
            inputs["predicted_by"] = canvas.column_ids[: planned.length].expand(len(input_ids), -1)
        if self.gate is not None:
            inputs["is_mask"] = planned.of(canvas.is_window() if canvas.moves_windows else canvas.masked)
        if planned.embed is None:
            return inputs | {"input_ids": input_ids}
        return inputs | {"inputs_embeds": planned.embed(planned, input_ids)}

    def score(self, planned: Pass, inputs: dict[str, Any]) -> torch.Tensor:
        """Runs the model, and lets it read and write the keys and values of a pass."""
        if self.cache is not None:
            self.cache.select(planned)
            inputs["past_key_values"] = self.cache
        with self.gate.on(inputs.pop("is_mask")) if self.gate else nullcontext():
            return self.model.score(inputs, planned.scored, forward=self.forward)


class CompiledRunner(Runner):
    """Runs passes of few shapes by compiled code: every pass computes all rows, in windows of a few lengths."""

    def __init__(self, model: PreTrainedModel, canvas: Canvas, parts: Sequence[RowPart]):
        super().__init__(model, canvas, parts)
        self.forward = model.get_compiled_call(canvas.config.compile_config)
        self.planner.always_masks = True
        self._num_rows = 1
        # The rows of a pass: those of the canvas, and its last one again.
        self._all_rows: torch.LongTensor
        self._made_for = (0, 0)
        if self.cache is not None:
            self.cache = _borrow_cache(self, self.cache)

    def fit_rows(self, num_rows: int) -> None:
        # Code is compiled for each number of rows: the most so far, rounded up to a power of two.
        self._num_rows = max(self._num_rows, 1 << (num_rows - 1).bit_length())
        if self._made_for != (num_rows, self._num_rows):
            self._made_for = (num_rows, self._num_rows)
            self._all_rows = torch.arange(self._num_rows, device=self.canvas.masked.device).clamp(max=num_rows - 1)
        super().fit_rows(self._num_rows)

    def run(self, planned: Pass) -> torch.Tensor:
        padded = self._padded(planned)
        torch.compiler.cudagraph_mark_step_begin()
        # The cache has as many rows as the pass.
        logits = self.score(padded._replace(rows=None), self.inputs(padded))
        # Compiled code reuses the memory of its result, which an index by a tensor copies.
        rows = slice(len(self.canvas)) if planned.rows is None else planned.rows
        return logits[rows, : planned.scored.shape[1]]

    def _padded(self, planned: Pass) -> Pass:
        """Returns the pass over all rows. The cache keeps only what `planned` computes."""
        source = self._all_rows
        if planned.rows is not None:
            # The index of each row in the pass. A row that is absent (-1) computes the first one again.
            absent = torch.full((len(self.canvas),), -1, device=source.device)
            source = absent.index_copy(0, planned.rows, torch.arange(len(planned.rows), device=source.device))[source]
        is_present, source = source >= 0, source.clamp(min=0)
        padded = planned._replace(rows=self._all_rows, columns=planned.columns[source], scored=planned.scored[source])
        if self.cache is not None:
            kept = None if planned.kept is None else planned.kept[source]
            padded = self._widened(padded._replace(kept=kept), is_present)
        # As many scored columns as possible, so that there is one shape to compile.
        missing = -planned.scored.shape[1] % self.canvas.config.block_length
        padded = padded._replace(scored=pad(padded.scored, (0, missing)))
        return padded._replace(mask=self.planner.mask(padded))

    def _widened(self, planned: Pass, is_present: torch.BoolTensor) -> Pass:
        """Returns a pass widened to 1, 2, 4, ... blocks, of which only the present rows and given columns are kept."""
        width, length, block_length = self.canvas.width, planned.length, self.canvas.config.block_length
        num_blocks = -(-(length - self.planner.lead) // block_length)
        size = min(block_length * (1 << (num_blocks - 1).bit_length()) + self.planner.lead, width)
        start = planned.columns[:, :1]
        first = start.clamp(max=width - size)
        inside = first + torch.arange(size, device=start.device) - start
        kept = (inside >= 0) & (inside < length) & is_present[:, None]
        if planned.kept is not None:
            kept &= planned.kept.gather(1, inside.clamp(0, length - 1))
        columns, scored = inside + start, planned.scored + start - first
        return planned._replace(columns=columns, scored=scored, num_keys=width, kept=kept, start=None)


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
