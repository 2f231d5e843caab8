# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Runs passes: the model and its cache."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from .cache import CanvasCache
from .canvas import Canvas
from .hooks.base import DecodingHook
from .plan import Pass, Planner


# By model, the cache of its last compiled decode: CUDA graphs are recorded for the memory that it has.
_KEPT: WeakKeyDictionary[PreTrainedModel, CanvasCache] = WeakKeyDictionary()


class Runner:
    """Runs the passes that a planner plans, extended by the hooks."""

    def __init__(self, model: PreTrainedModel, canvas: Canvas, planner: Planner, hooks: Sequence[DecodingHook]):
        self.model = model
        self.canvas = canvas
        self.planner = planner
        self.hooks = hooks
        # Tells adapters that act on masks where those of a pass are.
        self.gate: Any = None
        # While there are rows.
        self.cache: CanvasCache | None = None

    def fit(self) -> None:
        """Fits the cache to the rows of the canvas."""
        canvas = self.canvas
        if canvas.config.cache_implementation == "none":
            return

        if self.cache is None and canvas.is_static:
            # Nobody else has it until the rows have left.
            self.cache = _KEPT.pop(self.model, None)
        if self.cache is None:
            num_layers = self.model.config.get_text_config().num_hidden_layers
            self.cache = CanvasCache(num_layers, canvas.is_static)
        self.cache.fit(canvas.row_ids, len(canvas.sequences), canvas.width, canvas.sequences.device)

    def release(self) -> None:
        """Lets go of the cache when all rows have left. The next compiled decode of the model uses its memory."""
        cache = self.cache
        self.cache = None
        if cache is not None and self.canvas.is_static:
            cache.reset()
            _KEPT[self.model] = cache

    def logits(self, wanted: torch.LongTensor) -> torch.Tensor:
        """Returns the scores at some columns of each row, `(rows, columns, vocab_size)` for `(rows, columns)`."""
        self.fit()
        return self.run_all(self.planner.plan(self.scored(wanted)))

    def scored(self, wanted: torch.LongTensor) -> torch.LongTensor:
        """Returns the columns whose logits score `wanted` ones."""
        if self.canvas.predicts_next_block and not self.model.shift_logits:
            # The logits of the column before score the first token of a block.
            return wanted - self.canvas.is_block_start.gather(1, wanted).long()
        return wanted

    def run_all(self, passes: Sequence[Pass]) -> torch.Tensor:
        """Runs passes, and returns the scores of all lines of the canvas."""
        rows = []
        scores = []
        for planned in passes:
            for hook in self.hooks:
                planned = hook.extend(planned)
            logits = self.run(planned)
            if logits.shape[1]:
                rows.append(planned.rows)
                scores.append(logits)

        if len(scores) == 1 and rows[0] is None:
            return scores[0]
        joined = torch.cat(scores)
        lines = joined.new_zeros(len(self.canvas.sequences), *joined.shape[1:])
        return lines.index_copy_(0, torch.cat(rows), joined)

    def run(self, planned: Pass) -> torch.Tensor:
        """Runs a pass, with the cache, and returns the logits of its scored tokens."""
        canvas = self.canvas
        input_ids = planned.of(canvas.input_ids())
        position_ids = planned.of(canvas.positions())
        if planned.appended is not None:
            more_ids, more_positions = planned.appended
            input_ids = torch.cat([input_ids, more_ids], dim=1)
            position_ids = torch.cat([position_ids, more_positions], dim=1)

        inputs = {"input_ids": input_ids, "position_ids": position_ids, "attention_mask": planned.mask}
        if planned.inputs_embeds is not None:
            inputs |= {"input_ids": None, "inputs_embeds": planned.inputs_embeds}
        if planned.predicting_columns is not None:
            inputs["predicting_columns"] = planned.predicting_columns
        if self.cache is not None:
            self.cache.select(planned)
            inputs["past_key_values"] = self.cache

        with self.gate(planned.of(canvas.is_mask())) if self.gate else nullcontext():
            return self.model.score(inputs, planned.scored)
