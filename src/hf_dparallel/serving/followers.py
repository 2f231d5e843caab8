# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Followers: each watches one row of a batch, and may change what a pass commits in it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.utils import logging

from ..generation.canvas import Canvas
from ..generation.parts import Change, RowPart
from ..generation.prediction import TokenPrediction


logger = logging.get_logger(__name__)


@dataclass
class Draft:
    """A part of the answer after a pass. It replaces everything that was sent from position `start` on."""

    start: int
    tokens: list[int]
    # The pass that committed each token, -1 for a mask.
    commit_step: list[int]
    # The token before `start`, if there is one.
    before: list[int] = field(default_factory=list)
    # The probability of the likeliest token for each mask, by its position in the answer.
    confidence: dict[int, float] = field(default_factory=dict)


@dataclass
class TokenLogprobs:
    """The log-probability of a token, in nats, at temperature 1 over the whole vocabulary, as in commit rules.

    `top` has the likeliest tokens at the same position with their log-probabilities. The mask token, which is never
    committed, is not among them.
    """

    logprob: float
    top: list[tuple[int, float]] = field(default_factory=list)


@dataclass
class Progress:
    """The new tokens of an answer after a pass."""

    # All tokens before these are decided and sent.
    tokens: list[int]
    # Forward passes so far.
    nfe: int
    # With the last tokens: "stop" after an end-of-sequence token, else "length". After a failure, `error` is set.
    finish_reason: str | None = None
    error: Exception | None = None
    # Only if the request has `include_drafts` or `logprobs`.
    draft: Draft | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    @property
    def is_last(self) -> bool:
        """Tells whether these are the last tokens."""
        return self.finish_reason is not None or self.error is not None


class Follower:
    """Watches a single row. Its number in the canvas, `row`, changes when other rows leave."""

    def enter(self, canvas: Canvas, row: int) -> None:
        """Runs when the row has entered the canvas."""

    def change(self, canvas: Canvas, row: int, prediction: TokenPrediction, change: Change) -> Change:
        """Returns what the pass writes, like [`RowPart.change`]."""
        return change

    def after(self, canvas: Canvas, row: int) -> None:
        """Runs after a pass is written, and finished blocks are left."""

    def leave(self) -> dict[str, Any]:
        """Returns additional fields of the [`DecodedRow`]."""
        return {}

    def tell(self, progress: Progress, start: int, end: int) -> None:
        """Adds to `progress`, which has the tokens of the answer from position `start` to before `end`."""


class RowFollowers(RowPart):
    """Calls the followers of each row in their order. `followers_of` returns them for the id of a row.

    If a follower fails, its row ends with the error, and the other rows go on.
    """

    def __init__(self, followers_of: Callable[[int], Sequence[Follower]]):
        self.followers_of = followers_of
        self._errors: dict[int, Exception] = {}

    def enter(self, row_ids: list[int]) -> None:
        for row, follower in self._all(row_ids):
            self._call(follower.enter, row)

    def change(self, prediction: TokenPrediction, change: Change) -> Change:
        for row, follower in self._all(self.canvas.row_ids):
            change = self._call(follower.change, row, prediction, change) or change
        return change

    def after(self, prediction: TokenPrediction, change: Change) -> None:
        for row, follower in self._all(self.canvas.row_ids):
            self._call(follower.after, row)
        for row_id in self._errors:
            self.canvas.end_row(self.canvas.row_ids.index(row_id), 0)

    def leave(self, row_id: int) -> dict[str, Any]:
        fields = {name: value for each in self.followers_of(row_id) for name, value in each.leave().items()}
        return fields | ({"error": self._errors.pop(row_id)} if row_id in self._errors else {})

    def _all(self, row_ids: list[int]) -> Iterator[tuple[int, Follower]]:
        for row_id in row_ids:
            yield from ((self.canvas.row_ids.index(row_id), follower) for follower in self.followers_of(row_id))

    def _call(self, method: Callable, row: int, *arguments: Any) -> Any:
        try:
            return method(self.canvas, row, *arguments)
        except Exception as error:
            logger.error("A follower of a row failed; the row ends with an error.", exc_info=True)
            self._errors[self.canvas.row_ids[row]] = error


class DraftReader(Follower):
    """Reads the part of an answer (of at most `max_tokens` tokens) that a pass may have changed.

    This is everything from the first block on that was open before the pass: until a row leaves a block, the decided
    tokens in it may be revised.
    """

    def __init__(self, max_tokens: int):
        self.max_tokens = max_tokens
        self._start = 0
        self._confidence: dict[int, float] = {}
        self._draft: Draft | None = None

    def change(self, canvas: Canvas, row: int, prediction: TokenPrediction, change: Change) -> Change:
        places = (prediction.columns[row] - canvas.answer(row).start).tolist()
        self._confidence = dict(zip(places, prediction.confidence[row].tolist(), strict=True))
        return change

    def after(self, canvas: Canvas, row: int) -> None:
        first, status = canvas.answer(row).start, canvas.status[row]
        open_from, end = canvas.open_edges(row)
        length = self.max_tokens
        if status.is_finished:
            length, end = min(length, status.length, status.length_to_eos), canvas.answer(row).stop
        columns = slice(first + self._start, min(first + length, end))
        tokens = canvas.sequences[row, columns]
        commit_step = torch.where(canvas.masked[row, columns], -1, canvas.commit_step[row, columns])
        before = canvas.sequences[row, columns.start - 1 : columns.start] if self._start else tokens[:0]
        self._draft = Draft(self._start, tokens.tolist(), commit_step.tolist(), before.tolist(), self._confidence)
        # The first block may start in the prompt.
        self._start = max(open_from - first, 0)

    def tell(self, progress: Progress, start: int, end: int) -> None:
        progress.draft = self._draft


class CommitLogprobs(Follower):
    """Collects the log-probability of each token, and of the `num_top` likeliest tokens at its position.

    For a revised token, these are from its last commit.
    """

    def __init__(self, num_top: int = 0):
        self.num_top = num_top
        self._of_place: dict[int, TokenLogprobs] = {}

    def change(self, canvas: Canvas, row: int, prediction: TokenPrediction, change: Change) -> Change:
        written = change.accepted[row]
        places = prediction.columns[row, written] - canvas.answer(row).start
        logits = prediction.logits[row, written]
        log_probs = torch.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        chosen = log_probs.gather(1, change.tokens[row, written, None]).squeeze(1)
        log_probs[:, canvas.config.mask_token_id] = -torch.inf
        top = log_probs.topk(min(self.num_top, logits.shape[-1] - 1), dim=-1)
        listed = (places.tolist(), chosen.tolist(), top.indices.tolist(), top.values.tolist())
        for place, logprob, top_ids, top_logprobs in zip(*listed, strict=True):
            self._of_place[place] = TokenLogprobs(logprob, list(zip(top_ids, top_logprobs, strict=True)))
        return change

    def tell(self, progress: Progress, start: int, end: int) -> None:
        # Given tokens were never predicted. Their probability is 1.
        progress.logprobs = [self._of_place.get(place, TokenLogprobs(0.0)) for place in range(start, end)]
