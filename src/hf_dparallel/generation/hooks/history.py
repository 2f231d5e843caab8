# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Records what a decode predicts."""

from typing import Any

import torch
from transformers import PreTrainedModel

from hf_dparallel_rules.certainty import TokenPrediction, measure_certainty

from ..canvas import Canvas
from ..output import HISTORIES, NUM_CANDIDATES
from .base import Change, DecodingHook


class CertaintyHistory(DecodingHook):
    """Records the predictions of every masked token in every pass: the measures that commit rules decide by."""

    def __init__(self) -> None:
        # By name, of all columns of the canvas in this pass.
        self._current: dict[str, torch.Tensor] = {}
        # By row id, of the answer in each pass.
        self._passes: dict[int, list[dict[str, torch.Tensor]]] = {}

    def attach(self, model: PreTrainedModel, canvas: Canvas) -> None:
        super().attach(model, canvas)
        # Where passes compute more than the open blocks, and do not need what they decide.
        config = canvas.config
        is_cut_off = config.suffix_length is not None or config.cache_implementation == "dual"
        self.looks_ahead = model.attention == "full" and not is_cut_off

    def scores(self, columns: torch.LongTensor, masked: torch.BoolTensor, logits: torch.Tensor) -> torch.Tensor:
        canvas = self.canvas
        certainty = measure_certainty(logits, canvas.config.mask_token_id)
        # One row at a time: a copy of the logits of the whole canvas is large.
        likeliest = [self._likeliest(scores) for scores in logits]
        measured = {
            "entropies": certainty.entropy,
            "confidences": certainty.confidence,
            "candidates": torch.stack([of_row.indices for of_row in likeliest]),
            "candidate_probabilities": torch.stack([of_row.values for of_row in likeliest]),
        }

        self._current = {"standing": canvas.sequences.masked_fill(canvas.masked, -1)}
        for name, values in measured.items():
            fill, shape = HISTORIES[name]
            # As many dimensions as the values have.
            index = columns.view(*columns.shape, *[1] * len(shape))
            is_known = masked.view(*columns.shape, *[1] * len(shape))
            recorded = values.new_full((*canvas.sequences.shape, *shape), fill)
            self._current[name] = recorded.scatter_(1, index.expand_as(values), values.where(is_known, fill))
        return logits

    def _likeliest(self, logits: torch.Tensor) -> Any:
        probabilities = torch.softmax(logits, dim=-1, dtype=torch.float32)
        probabilities[:, self.canvas.config.mask_token_id] = 0
        return probabilities.topk(min(NUM_CANDIDATES, logits.shape[-1] - 1), dim=-1)

    def after(self, prediction: TokenPrediction, change: Change) -> None:
        canvas = self.canvas
        for row, row_id in enumerate(canvas.row_ids):
            answer = canvas.answer(row)
            of_row = {name: values[row, answer] for name, values in self._current.items()}
            self._passes.setdefault(row_id, []).append(of_row)

    def leave(self, row_id: int) -> dict[str, torch.Tensor]:
        passes = self._passes.pop(row_id, [])
        return {name: torch.stack([recorded[name] for recorded in passes]) for name in HISTORIES if passes}
