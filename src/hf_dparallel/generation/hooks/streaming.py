# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Feeds a streamer while a prompt is decoded."""

import torch
from transformers.generation.streamers import BaseStreamer

from hf_dparallel_rules.certainty import TokenPrediction

from .base import Change, DecodingHook


class DraftStream(DecodingHook):
    """Feeds a streamer: tokens that are final, in order, and a draft of the rest of the block if it takes drafts."""

    def __init__(self, streamer: BaseStreamer):
        self.streamer = streamer
        # Tokens of the answer that have been sent.
        self._num_sent = 0

    def enter(self, row_ids: list[int]) -> None:
        """Sends the prompt, which must be the only one; when infilling, nothing yet."""
        canvas = self.canvas
        if len(canvas) > 1:
            text = f"`streamer` works with one prompt only, got a batch of {len(canvas)}."
            raise ValueError(f"{text} Call `generate` for each, with `num_return_sequences=1`.")
        # Compiled passes have padding before a single prompt, too.
        prompt = canvas.sequences[:, canvas.prompt_start(0) : canvas.answer(0).start]
        self.streamer.put(prompt.cpu())

    def after(self, prediction: TokenPrediction, change: Change) -> None:
        status = self.canvas.status[0]
        num_final = min(status.num_final, status.length)
        if num_final > self._num_sent:
            self.streamer.put(status.answer[self._num_sent : num_final])
            self._num_sent = num_final

        if hasattr(self.streamer, "put_draft") and not status.is_finished:
            draft = self._draft(prediction)
            if len(draft):
                self.streamer.put_draft(value=draft)

    def _draft(self, prediction: TokenPrediction) -> torch.LongTensor:
        """Returns the open blocks after the tokens that were sent: what is decided there, and predicted elsewhere."""
        canvas = self.canvas
        # With a single row, no column is there only to fill it up.
        row = canvas.sequences[0]
        masked = canvas.masked[0]
        columns = prediction.columns[0]
        guess = row.scatter(0, columns, torch.where(masked[columns], prediction.tokens[0], row[columns]))
        # In a block that was entered in this pass nothing has been predicted yet.
        guess = guess.masked_fill(masked.scatter(0, columns, False), -1)

        answer = canvas.answer(0)
        end = min(canvas.open_edges(0)[1], answer.stop)
        draft = guess[answer.start + self._num_sent : end].cpu()
        return draft[draft >= 0]
