# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What follows a decode along: the certainty history, a streamer, custom stopping criteria."""

import torch
from transformers import StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from ..certainty import confidence_from_logits, entropy_from_logits
from .canvas import Canvas


# Enough to see what a prediction wavers between.
NUM_CANDIDATES = 5
# Of a row without masks.
_NOTHING = {
    "entropies": torch.empty(0),
    "confidences": torch.empty(0),
    "candidates": torch.empty(0, NUM_CANDIDATES, dtype=torch.long),
    "candidate_probabilities": torch.empty(0, NUM_CANDIDATES),
}


class CertaintyHistory:
    """Collects what the model predicts of every masked token at every pass, before any logits processor."""

    def __init__(self, canvas: Canvas):
        self.canvas = canvas
        self._passes: dict[int, list[dict[str, torch.Tensor]]] = {}

    def record(self, columns: torch.LongTensor, logits: torch.Tensor) -> None:
        """Adds a pass; `logits` of shape `(rows, columns, vocab_size)`, the scores at `columns`."""
        decided = ~self.canvas.masked.gather(1, columns)
        probabilities = torch.softmax(logits, dim=-1, dtype=torch.float32)
        probabilities[..., self.canvas.mask_token_id] = 0
        likeliest = probabilities.topk(min(NUM_CANDIDATES, logits.shape[-1]), dim=-1)
        recorded = {
            "entropies": entropy_from_logits(logits).masked_fill(decided, torch.nan),
            "confidences": confidence_from_logits(logits).masked_fill(decided, torch.nan),
            "candidates": likeliest.indices.masked_fill(decided[..., None], -1),
            "candidate_probabilities": likeliest.values.masked_fill(decided[..., None], torch.nan),
        }
        for row, row_id in enumerate(self.canvas.row_ids):
            certainty = {name: values[row] for name, values in recorded.items()}
            self._passes.setdefault(row_id, []).append(certainty)

    def take(self, row_id: int) -> dict[str, torch.Tensor]:
        """What was recorded of a finished row, by the names of [`DiffusionGenerationOutput`], a line for each pass."""
        passes = self._passes.pop(row_id, [_NOTHING])
        # Rows are aligned on the right; the left padding of an infilled row may have changed on the way.
        width = min(len(certainty["entropies"]) for certainty in passes)
        return {
            name: torch.stack([certainty[name][len(certainty[name]) - width :] for certainty in passes])
            for name in _NOTHING
        }

    def discard(self, row_id: int) -> None:
        """Forgets a row that was given up."""
        self._passes.pop(row_id, None)


class StopCheck:
    """Ends the answers for which a stopping criterion holds.

    Criteria look at the end of a sequence. To mean the same as in left-to-right decoding they are called for every
    newly decided token, also when several were committed in one pass.
    """

    def __init__(self, canvas: Canvas, criteria: StoppingCriteriaList):
        self.canvas = canvas
        self.criteria = criteria
        # By row, how many columns on the right have not been looked at.
        self._unchecked: dict[int, int] = {}

    def update(self) -> None:
        """Looks at the tokens decided since the last call."""
        self._unchecked = {
            row_id: self._unchecked.get(row_id, self.canvas.max_new_tokens) for row_id in self.canvas.row_ids
        }
        for row, row_id in enumerate(self.canvas.row_ids):
            status = self.canvas.status[row]
            left = self._first_stop(row, self._unchecked[row_id], max(status.undecided, status.after_end))
            if left is not None:
                status.after_end, status.is_finished = left, True
            self._unchecked[row_id] = status.undecided

    def _first_stop(self, row: int, unchecked: int, undecided: int) -> int | None:
        """Columns after the first newly decided token at which a criterion holds."""
        sequence, width = self.canvas.sequences[row : row + 1], self.canvas.width
        left = range(unchecked - 1, undecided - 1, -1)
        # Where the answer begins, for criteria that must not look at the prompt.
        start = width - self.canvas.max_new_tokens
        holds = [self.criteria(sequence[:, : width - columns], None, answer_start=start).all() for columns in left]
        # One wait for the device a row, however many tokens it has decided.
        stops = torch.stack(holds).tolist() if holds else []
        return next((columns for columns, stop in zip(left, stops, strict=True) if stop), None)


class DraftStream:
    """Feeds a streamer: decided tokens in order, and a draft of the rest of the block if it takes drafts."""

    def __init__(self, canvas: Canvas, streamer: BaseStreamer):
        self.canvas = canvas
        self.streamer = streamer
        self._sent = 0

    def start(self) -> None:
        """Sends the prompt.

        Raises:
            ValueError: if there is more than one.
        """
        if len(self.canvas) > 1:
            raise ValueError(f"`streamer` works with one prompt only, got a batch of {len(self.canvas)}.")
        # Without the padding that compiled code needs.
        first = self.canvas.width - self.canvas.max_new_tokens - self.canvas.prompt_lengths[0]
        self._sent = self.canvas.width - self.canvas.max_new_tokens if self.canvas.max_new_tokens else first
        self.streamer.put(self.canvas.sequences[:, first : self._sent].cpu())

    def update(self, columns: torch.LongTensor, masked: torch.BoolTensor, tokens: torch.LongTensor) -> None:
        """Sends what a pass has decided; all arguments are `(1, columns)`.

        Args:
            columns (`torch.LongTensor`): columns of the canvas.
            masked (`torch.BoolTensor`): which of them were open.
            tokens (`torch.LongTensor`): the predictions there.
        """
        status, width = self.canvas.status[0], self.canvas.width
        decided = width - max(status.undecided, status.after_end)
        if decided > self._sent:
            self.streamer.put(self.canvas.sequences[0, self._sent : decided].cpu())
            self._sent = decided
        if hasattr(self.streamer, "put_draft") and not status.is_finished:
            draft = self.canvas.sequences[0].clone()
            still_masked = masked[0] & self.canvas.masked[0, columns[0]]
            draft[columns[0, still_masked]] = tokens[0, still_masked]
            end = width - status.last_block * self.canvas.block_length
            # In a block that was entered in this pass nothing has been predicted yet.
            undecided = draft[self._sent : end]
            undecided = undecided[undecided != self.canvas.mask_token_id]
            if len(undecided):
                self.streamer.put_draft(value=undecided.cpu())

    def end(self) -> None:
        """Closes the streamer."""
        self.streamer.end()
