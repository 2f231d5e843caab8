# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Records what a decode predicts."""

from typing import Any

import torch
from transformers import PreTrainedModel

from hf_dparallel_rules.certainty import measure_certainty

from ..canvas import Canvas
from ..output import HISTORIES, NUM_CANDIDATES
from .base import DecodingHook


class CertaintyHistory(DecodingHook):
    """Records the predictions of every masked token in every pass: the measures that commit rules decide by."""

    def __init__(self) -> None:
        self._passes: dict[int, list[dict[str, torch.Tensor]]] = {}

    def attach(self, model: PreTrainedModel, canvas: Canvas) -> None:
        super().attach(model, canvas)
        # Where passes compute more than the open blocks, and do not need what they decide.
        config = canvas.config
        is_cut_off = config.suffix_length is not None or config.cache_implementation == "dual"
        self.looks_ahead = model.attention == "full" and not is_cut_off

    def scores(self, columns: torch.LongTensor, logits: torch.Tensor) -> torch.Tensor:
        canvas = self.canvas
        certainty = measure_certainty(logits, canvas.config.mask_token_id)
        is_predicted = (canvas.masked if self.looks_ahead else canvas.is_open).gather(1, columns)
        # One row at a time: a copy of the logits of the whole canvas is large.
        likeliest = [self._likeliest(scores) for scores in logits]
        measured = {
            "entropies": certainty.entropy,
            "confidences": certainty.confidence,
            "candidates": torch.stack([of_row.indices for of_row in likeliest]),
            "candidate_probabilities": torch.stack([of_row.values for of_row in likeliest]),
        }
        recorded = {"standing": canvas.sequences.masked_fill(canvas.masked, -1)}
        for name, values in measured.items():
            fill, shape = HISTORIES[name]
            index, is_known = (each.view(*each.shape, *(1 for _ in shape)) for each in (columns, is_predicted))
            recorded[name] = values.new_full((*canvas.sequences.shape, *shape), fill)
            recorded[name].scatter_(1, index.expand_as(values), values.where(is_known, fill))
        for row, row_id in enumerate(canvas.row_ids):
            answer = canvas.answer(row)
            self._passes.setdefault(row_id, []).append({name: of[row, answer] for name, of in recorded.items()})
        return logits

    def _likeliest(self, logits: torch.Tensor) -> Any:
        probabilities = torch.softmax(logits, dim=-1, dtype=torch.float32)
        probabilities[:, self.canvas.config.mask_token_id] = 0
        return probabilities.topk(min(NUM_CANDIDATES, logits.shape[-1] - 1), dim=-1)

    def leave(self, row_id: int) -> dict[str, torch.Tensor]:
        passes = self._passes.pop(row_id, [])
        return {name: torch.stack([recorded[name] for recorded in passes]) for name in HISTORIES if passes}
