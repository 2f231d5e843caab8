# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Streamers of transformers, fed with what each pass has decided."""

import torch
from transformers.generation.streamers import BaseStreamer

from .canvas import Canvas


class DraftStream:
    """Feeds a streamer: tokens that are final, in order, and a draft of the rest of the block if it takes drafts."""

    def __init__(self, canvas: Canvas, streamer: BaseStreamer):
        if not (callable(getattr(streamer, "put", None)) and callable(getattr(streamer, "end", None))):
            raise ValueError(
                f"`streamer` must have the methods `put` and `end`, got {type(streamer).__name__}. Pass one of "
                "transformers, such as `TextStreamer(tokenizer)`."
            )
        self.canvas = canvas
        self.streamer = streamer
        # Tokens of the row that have been sent, its prompt among them.
        self._sent = 0

    def start(self) -> None:
        """Sends the prompt; when infilling, nothing yet.

        Raises:
            ValueError: if there is more than one.
        """
        if len(self.canvas) > 1:
            raise ValueError(
                f"`streamer` works with one prompt only, got a batch of {len(self.canvas)}. Call `generate` for each, "
                "with `num_return_sequences=1`."
            )
        # Without the padding that compiled code needs.
        row = self.canvas.sequences[0, self.canvas.prompt_start(0) :]
        self._sent = self.canvas.prompt_lengths[0] if self.canvas.max_new_tokens else 0
        self.streamer.put(row[None, : self._sent].cpu())

    def update(self, columns: torch.LongTensor, considered: torch.BoolTensor, tokens: torch.LongTensor) -> None:
        """Sends what a pass has decided; all arguments are `(1, columns)`.

        Args:
            columns (`torch.LongTensor`): columns of the canvas.
            considered (`torch.BoolTensor`): which of them were masks, or decided tokens that could change.
            tokens (`torch.LongTensor`): the predictions there.
        """
        canvas, status, first = self.canvas, self.canvas.status[0], self.canvas.prompt_start(0)
        decided = canvas.answer_start(0) - first + min(status.num_final, status.length)
        row, end = canvas.sequences[0], first + decided
        if hasattr(self.streamer, "put_draft") and not status.is_finished:
            is_draft = considered[0] & canvas.masked[0, columns[0]]
            row = row.scatter(0, columns[0], torch.where(is_draft, tokens[0], row[columns[0]]))
            end = max(end, min(canvas.open_edges(0)[1], canvas.answer_end(0)))
        if end == first + self._sent:
            return
        # One wait for the device, for both.
        sent, draft = row[first + self._sent : end].cpu().tensor_split([decided - self._sent])
        if len(sent):
            self.streamer.put(sent)
            self._sent = decided
        # In a block that was entered in this pass nothing has been predicted yet.
        draft = draft[draft != canvas.config.mask_token_id]
        if len(draft):
            self.streamer.put_draft(value=draft)
