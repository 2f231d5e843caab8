# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Runs passes: the model and its cache, compiled or not."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import PreTrainedModel

from .cache import CanvasCache
from .canvas import Canvas
from .hooks.base import DecodingHook
from .plan import Pass, Planner


class Runner:
    """Runs the passes that a planner plans, extended by the hooks."""

    def __init__(self, model: PreTrainedModel, canvas: Canvas, planner: Planner, hooks: Sequence[DecodingHook]):
        self.model = model
        self.canvas = canvas
        self.planner = planner
        self.hooks = hooks
        # Tells adapters that act on masks where those of a pass are.
        self.gate: Any = None
        compile_config = canvas.config.compile_config
        self.forward = None if compile_config is None else model.get_compiled_call(compile_config)
        self.cache: CanvasCache | None = None
        if canvas.config.cache_implementation != "none":
            self.cache = CanvasCache(model.config.get_text_config().num_hidden_layers)

    def logits(self, wanted: torch.LongTensor) -> torch.Tensor:
        """Returns the scores at some columns of each row, `(rows, columns, vocab_size)` for `(rows, columns)`."""
        canvas = self.canvas
        if self.cache is not None:
            self.cache.fit(canvas.row_ids, canvas.width, canvas.sequences.device)
        if canvas.predicts_next_block and not self.model.shift_logits:
            # The logits of the column before score the first token of a block.
            wanted = wanted - canvas.is_block_start.gather(1, wanted).long()

        rows = []
        scores = []
        for planned in self.planner.plan(wanted):
            for hook in self.hooks:
                planned = hook.extend(planned)
            logits = self.run(planned)
            if logits.shape[1]:
                rows.append(planned.rows)
                scores.append(logits)

        if len(scores) == 1:
            return scores[0]
        joined = torch.cat(scores)
        return torch.empty_like(joined).index_copy_(0, torch.cat(rows), joined)

    def run(self, planned: Pass) -> torch.Tensor:
        """Runs a pass, with the cache, and returns the logits of its scored tokens."""
        canvas = self.canvas
        input_ids = planned.of(canvas.input_ids())
        position_ids = planned.of(canvas.position_ids)
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

        scored = planned.scored
        if self.forward is not None:
            # Few shapes are compiled, and each is a CUDA graph.
            scored = pad(scored, (0, -scored.shape[1] % canvas.config.block_length))
            torch.compiler.cudagraph_mark_step_begin()
        with self.gate(planned.of(canvas.is_mask())) if self.gate else nullcontext():
            logits = self.model.score(inputs, scored, forward=self.forward)
        if self.forward is None:
            return logits
        # The memory of what compiled code returns is used again.
        return logits[:, : planned.scored.shape[1]].clone()
