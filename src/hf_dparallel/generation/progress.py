# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What follows a decode along: the certainty history, a streamer, custom stopping criteria."""

import torch
from transformers import StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from ..certainty import confidence_from_logits, entropy_from_logits
from .canvas import Canvas


class CertaintyHistory:
    """Collects entropy and confidence of every masked token at every pass, before any logits processor."""

    def __init__(self, canvas: Canvas):
        self.canvas = canvas
        self._entropies: list[torch.Tensor] = []
        self._confidences: list[torch.Tensor] = []

    def record(self, logits: torch.Tensor) -> None:
        """Adds a pass; `logits` of shape `(active, max_new_tokens, vocab_size)`."""
        self._entropies.append(self._spread(entropy_from_logits(logits)))
        self._confidences.append(self._spread(confidence_from_logits(logits)))

    def entropies(self) -> torch.FloatTensor:
        """Entropies in nats, `(batch_size, num_passes, max_new_tokens)`, NaN where nothing was masked."""
        return torch.stack(self._entropies, dim=1)

    def confidences(self) -> torch.FloatTensor:
        """Largest probabilities, `(batch_size, num_passes, max_new_tokens)`, NaN where nothing was masked."""
        return torch.stack(self._confidences, dim=1)

    def _spread(self, certainty: torch.Tensor) -> torch.Tensor:
        active, masked = self.canvas.active, self.canvas.masked
        spread = torch.full(masked.shape, torch.nan, device=masked.device)
        spread[active] = certainty.masked_fill(~masked[active], torch.nan)
        return spread


class StopCheck:
    """Ends the answers for which a stopping criterion holds, and knows how long every answer is.

    Criteria look at the end of a sequence. To mean the same as in left-to-right decoding they are called for every
    newly decided token, also when several were committed in one pass.
    """

    def __init__(self, canvas: Canvas, criteria: StoppingCriteriaList):
        self.canvas = canvas
        self.criteria = criteria
        self._checked = [0] * len(canvas.sequences)
        self._stopped_at: dict[int, int] = {}

    def update(self) -> None:
        """Looks at the tokens decided since the last call."""
        if not self.criteria:
            return
        for row, decided in enumerate(self.canvas.decided_length().tolist()):
            if row not in self._stopped_at:
                self._check_row(row, decided)
        if self._stopped_at:
            stopped = torch.tensor(list(self._stopped_at), device=self.canvas.active.device)
            self.canvas.active = self.canvas.active[~torch.isin(self.canvas.active, stopped)]

    def lengths(self) -> torch.LongTensor:
        """Length of every answer, `(batch_size,)`: to the stop, or to the first end-of-sequence token, or all."""
        lengths = self.canvas.length_to_first(self.canvas.eos_token_ids)
        for row, length in self._stopped_at.items():
            lengths[row] = min(length, int(lengths[row]))
        return lengths

    def _check_row(self, row: int, decided: int) -> None:
        lengths = range(self._checked[row] + 1, decided + 1)
        sequence = self.canvas.sequences[row : row + 1]
        holds = [self.criteria(sequence[:, : self.canvas.prompt_length + length], None).all() for length in lengths]
        # One wait for the device a row, however many tokens it has decided.
        for length, stop in zip(lengths, torch.stack(holds).tolist() if holds else [], strict=True):
            if stop:
                self._stopped_at[row] = length
                return
        self._checked[row] = decided


class DraftStream:
    """Feeds a streamer: decided tokens in order, and a draft of the rest of the block if it takes drafts."""

    def __init__(self, canvas: Canvas, streamer: BaseStreamer):
        if len(canvas.sequences) > 1:
            raise ValueError(f"`streamer` works with one prompt only, got a batch of {len(canvas.sequences)}.")
        self.canvas = canvas
        self.streamer = streamer
        self._sent = 0
        streamer.put(canvas.sequences[:, : canvas.prompt_length].cpu())

    def update(self, columns: torch.LongTensor, tokens: torch.LongTensor, lengths: torch.LongTensor) -> None:
        """Sends what a pass has decided.

        Args:
            columns, tokens (`torch.LongTensor` of shape `(1, block_length)`): the block and the predictions for it.
            lengths (`torch.LongTensor` of shape `(1,)`): where the answer ends, as far as is known.
        """
        decided = min(int(self.canvas.decided_length()[0]), int(lengths[0]))
        if decided > self._sent:
            self.streamer.put(self.canvas.new_ids[0, self._sent : decided].cpu())
            self._sent = decided
        if hasattr(self.streamer, "put_draft") and len(self.canvas.active):
            draft = torch.where(self.canvas.masked[0, columns[0]], tokens[0], self.canvas.new_ids[0, columns[0]])
            undecided = draft[columns[0] >= self._sent]
            if len(undecided):
                self.streamer.put_draft(value=undecided.cpu())

    def end(self) -> None:
        """Closes the streamer."""
        self.streamer.end()
