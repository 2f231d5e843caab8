# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The certainty of every prediction of a decode, pass by pass."""

import torch

from ..certainty import measure_certainty
from .canvas import Canvas


# Enough to see what a prediction wavers between.
NUM_CANDIDATES = 5
# By name, the value where there is no prediction, and the shape behind (passes, tokens).
HISTORIES: dict[str, tuple[float, tuple[int, ...]]] = {
    "entropies": (torch.nan, ()),
    "confidences": (torch.nan, ()),
    "candidates": (-1, (NUM_CANDIDATES,)),
    "candidate_probabilities": (torch.nan, (NUM_CANDIDATES,)),
    "standing": (-1, ()),
}


class CertaintyHistory:
    """Collects what is predicted of every masked token at every pass: the measures that the commit rules decide by."""

    def __init__(self, canvas: Canvas):
        self.canvas = canvas
        self._passes: dict[int, list[dict[str, torch.Tensor]]] = {}

    def record(self, columns: torch.LongTensor, logits: torch.Tensor) -> None:
        """Adds a pass; `logits` of shape `(rows, columns, vocab_size)`, the scores at `columns`."""
        canvas = self.canvas
        certainty = measure_certainty(logits, canvas.config.mask_token_id)
        masked = (canvas.masked if canvas.predicts_ahead else canvas.is_open).gather(1, columns)
        # What is not masked, and what is no part of the answer, goes behind its end.
        places = canvas.place.gather(1, columns).masked_fill(~masked, canvas.width)
        by_row = zip(logits, certainty.entropy, certainty.confidence, places, strict=True)
        for row, (row_logits, entropy, confidence, row_places) in enumerate(by_row):
            length = canvas.answer_length(row)
            likeliest = self._likeliest(row_logits)
            recorded = {
                "entropies": entropy,
                "confidences": confidence,
                "candidates": likeliest.indices,
                "candidate_probabilities": likeliest.values,
            }
            for name, values in recorded.items():
                empty = values.new_full((length + 1, *values.shape[1:]), HISTORIES[name][0])
                recorded[name] = empty.index_copy_(0, row_places.clamp(max=length), values)[:length]
            answer = slice(canvas.answer_start(row), canvas.answer_end(row))
            recorded["standing"] = canvas.sequences[row, answer].masked_fill(canvas.masked[row, answer], -1)
            self._passes.setdefault(canvas.row_ids[row], []).append(recorded)

    def pop(self, row_id: int) -> dict[str, torch.Tensor]:
        """What was recorded of a finished row, by the names of [`DiffusionGenerationOutput`], a line for each pass."""
        passes = self._passes.pop(row_id, None)
        if passes is None:  # a prompt without masks
            device = self.canvas.masked.device
            return {
                name: torch.empty(0, 0, *shape, device=device, dtype=torch.long if fill == -1 else torch.float32)
                for name, (fill, shape) in HISTORIES.items()
            }
        return {name: torch.stack([recorded[name] for recorded in passes]) for name in HISTORIES}

    def discard(self, row_id: int) -> None:
        """Forgets a row that was given up."""
        self._passes.pop(row_id, None)

    def _likeliest(self, logits: torch.Tensor) -> torch.return_types.topk:
        # One row at a time: this is the whole canvas, and a copy of it with the vocabulary is large.
        probabilities = torch.softmax(logits, dim=-1, dtype=torch.float32)
        probabilities[:, self.canvas.config.mask_token_id] = 0
        return probabilities.topk(min(NUM_CANDIDATES, logits.shape[-1]), dim=-1)
