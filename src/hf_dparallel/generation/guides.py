# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Answers of a given form: their rows are decided from left to right, and a guide says which tokens fit."""

from collections.abc import Callable, Collection
from typing import Protocol

import torch

from .parts import Change, RowPart
from .prediction import TokenPrediction


# Of the likeliest tokens at a place, how many are tried before those that are sure to have one that fits.
_NUM_TRIED = 256


class Guide(Protocol):
    """The form of one answer, and how far it has come.

    Args:
        last_resort (`list[int]`): tokens of which one fits whatever the answer has been so far.
    """

    last_resort: list[int]

    def begin(self) -> list[int]:
        """The tokens that the answer begins with."""

    def follow(self, token: int) -> list[int] | None:
        """Takes the next token, if it fits.

        Returns:
            `list[int]`, *optional*: what is written for it: the token, or others that take its place because what
            follows is given; `None` if it does not fit.
        """


class Guides(RowPart):
    """Lets rows that have a guide commit what fits, from the first mask on without a gap, and at least one token.

    Args:
        guide_for (`Callable`): gives the guide of a row, or `None`. The rows must not revise their tokens.
    """

    def __init__(self, guide_for: Callable[[int], Guide | None]):
        self.guide_for = guide_for
        self._guides: dict[int, Guide] = {}

    def enter(self, row_ids: list[int]) -> None:
        """Writes the beginnings of the answers."""
        for row_id in row_ids:
            guide = self.guide_for(row_id)
            if guide is not None:
                self._guides[row_id] = guide
                self.canvas.begin(self.canvas.row_ids.index(row_id), guide.begin())

    def leave(self, row_id: int) -> dict:
        self._guides.pop(row_id, None)
        return {}

    def change(self, prediction: TokenPrediction, change: Change) -> Change:
        """Returns what the rows commit of their predictions. What is given is written into the canvas at once."""
        if not self._guides:
            return change
        tokens, accepted = change.tokens.clone(), change.accepted.clone()
        for row, row_id in enumerate(self.canvas.row_ids):
            if row_id not in self._guides:
                continue
            status = self.canvas.status[row]
            likely = change.accepted[row, : status.num_open].tolist()
            # The masks come first, from left to right.
            kept, given = self._decide(self._guides[row_id], prediction.logits[row], tokens[row].tolist(), likely)
            self.canvas.write(row, status.num_decided + len(kept), given)
            tokens[row, : len(kept)] = tokens.new_tensor(kept)
            accepted[row] = torch.arange(accepted.shape[1], device=accepted.device) < len(kept)
        return change._replace(tokens=tokens, accepted=accepted)

    def _decide(
        self, guide: Guide, logits: torch.Tensor, predicted: list[int], accepted: Collection[bool]
    ) -> tuple[list[int], list[int]]:
        """The predicted tokens that are committed, and the given ones behind them."""
        kept: list[int] = []
        for index, (token, is_accepted) in enumerate(zip(predicted, accepted, strict=False)):
            if index and not is_accepted:
                break
            written = guide.follow(token)
            if written is None and not index:
                token, written = self._likeliest_that_fits(guide, logits[0])
            if written != [token]:
                # What was predicted for the places behind it was not meant to follow what is given.
                return kept, written or []
            kept.append(token)
        return kept, []

    def _likeliest_that_fits(self, guide: Guide, logits: torch.Tensor) -> tuple[int, list[int]]:
        likeliest = logits.topk(min(_NUM_TRIED, len(logits))).indices.tolist()
        scores = logits[guide.last_resort].tolist()
        others = [token for _, token in sorted(zip(scores, guide.last_resort, strict=True), reverse=True)]
        tried = ((token, guide.follow(token)) for token in (*likeliest, *others))
        return next((token, written) for token, written in tried if written is not None)
