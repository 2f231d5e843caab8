# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Runs passes: the model and its cache, compiled or not."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import PreTrainedModel

from .cache import WindowCache
from .canvas import Canvas
from .hooks.base import DecodingHook
from .plan import Blocks, Pass, WholeCanvas, Windows


_PLANNERS = {"none": WholeCanvas, "prefix": Windows, "dual": Windows, "block": Blocks}


class Runner:
    """Runs the passes that the settings of a canvas ask for, extended by the hooks."""

    def __init__(self, model: PreTrainedModel, canvas: Canvas, hooks: Sequence[DecodingHook]):
        self.model, self.canvas, self.hooks = model, canvas, hooks
        implementation = canvas.config.cache_implementation
        self.planner = (canvas.planner or _PLANNERS[implementation])(canvas, model)
        # What adapters that act on masks are told.
        self.gate: Any = None
        compile_config = canvas.config.compile_config
        self.forward = None if compile_config is None else model.get_compiled_call(compile_config)
        has_cache = implementation != "none"
        self.cache = WindowCache(model.config.get_text_config().num_hidden_layers) if has_cache else None
        # The row ids of the cache, and its width.
        self._cached: tuple[list[int], int] = ([], 0)

    def logits(self, wanted: torch.LongTensor) -> torch.Tensor:
        """Returns the scores at some columns of each row, `(rows, columns, vocab_size)` for `(rows, columns)`."""
        self.fit_rows()
        if self.canvas.predicts_next_block and not self.model.shift_logits:
            # The logits of the column before score the first token of a block.
            wanted = wanted - self.canvas.is_block_start.gather(1, wanted).long()
        passes = self.planner.plan(wanted)
        for hook in self.hooks:
            passes = [hook.extend(planned) for planned in passes]
        results = [(planned.rows, self.run(planned)) for planned in passes]
        rows, logits = zip(*(result for result in results if result[1].shape[1]), strict=True)
        if len(logits) == 1:
            return logits[0]
        order, joined = torch.cat(rows), torch.cat(logits)
        return torch.empty_like(joined).index_copy_(0, order, joined)

    def fit_rows(self) -> None:
        """Fits the cache to the rows that have left and entered the canvas."""
        canvas, cache = self.canvas, self.cache
        if cache is None:
            return
        row_ids, width = self._cached
        if row_ids != canvas.row_ids or width != canvas.width:
            row_of = {row_id: row for row, row_id in enumerate(row_ids)}
            kept = [row_of[row_id] for row_id in canvas.row_ids if row_id in row_of]
            cache.resize(kept, len(canvas), canvas.width, canvas.sequences.device)
        self._cached = list(canvas.row_ids), canvas.width

    def forget(self) -> None:
        """Forgets what the cache stores, as after a pass that failed half-way: the next one computes whole rows."""
        self.planner = type(self.planner)(self.canvas, self.model)

    def run(self, planned: Pass) -> torch.Tensor:
        """Runs a pass, with the cache, and returns the logits of its scored tokens."""
        canvas, scored, num_scored = self.canvas, planned.scored, planned.scored.shape[1]
        ids = [planned.of(canvas.input_ids()), planned.of(canvas.position_ids)]
        if planned.appended is not None:
            ids = [torch.cat(parts, dim=1) for parts in zip(ids, planned.appended, strict=True)]
        inputs = {"input_ids": ids[0], "position_ids": ids[1], "attention_mask": planned.mask}
        if planned.inputs_embeds is not None:
            inputs |= {"input_ids": None, "inputs_embeds": planned.inputs_embeds}
        if planned.predicting_columns is not None:
            inputs["predicting_columns"] = planned.predicting_columns
        if self.cache is not None:
            self.cache.select(planned)
            inputs["past_key_values"] = self.cache
        if self.forward is not None:
            # Few shapes are compiled, and each is a CUDA graph.
            scored = pad(scored, (0, -num_scored % canvas.config.block_length))
            torch.compiler.cudagraph_mark_step_begin()
        with self.gate.on(planned.of(canvas.is_mask())) if self.gate else nullcontext():
            logits = self.model.score(inputs, scored, forward=self.forward)
        # The memory of what compiled code returns is used again.
        return logits if self.forward is None else logits[:, :num_scored].clone()
