# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What follows one prompt through the passes that it shares with others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..generation.canvas import Canvas
from ..generation.parts import Change, RowPart
from ..generation.prediction import TokenPrediction


@dataclass
class Draft:
    """A part of an answer as it stands after a pass. It takes the place of all that was known from `start` on.

    Args:
        start (`int`): number of its first token in the answer.
        tokens (`list[int]`): its tokens.
        commit_step (`list[int]`): the pass that committed each of them, -1 where there is a mask.
    """

    start: int
    tokens: list[int]
    commit_step: list[int]


@dataclass
class TokenLogprobs:
    """The log-probability of a token, and of the likeliest tokens at its place.

    Args:
        logprob (`float`): in nats, at temperature 1 and over the whole vocabulary, as the commit rules measure it.
        top (`list[tuple[int, float]]`): token ids and their log-probabilities, the likeliest first. The mask token,
            which is never committed, is left out.
    """

    logprob: float
    top: list[tuple[int, float]] = field(default_factory=list)


@dataclass
class Progress:
    """What a pass has brought for a prompt.

    Args:
        tokens (`list[int]`): new tokens that follow those before; all that precede them are decided.
        nfe (`int`): forward passes so far.
        finish_reason (`str`, *optional*): in the last one: "stop" after an end-of-sequence token, "length" otherwise.
        error (`Exception`, *optional*): in the last one: why there are no more tokens.
        draft ([`Draft`], *optional*): what stands of the answer, decided or not, if that was asked for.
        logprobs (`list[TokenLogprobs]`): of each of the tokens, if that was asked for.
    """

    tokens: list[int]
    nfe: int
    finish_reason: str | None = None
    error: Exception | None = None
    draft: Draft | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    @property
    def is_last(self) -> bool:
        """Whether nothing follows."""
        return self.finish_reason is not None or self.error is not None


class Follower:
    """Follows a single row. Its number in the canvas, `row`, changes when others leave."""

    def enter(self, canvas: Canvas, row: int) -> None:
        """Called when the row has entered."""

    def change(self, canvas: Canvas, row: int, prediction: TokenPrediction, change: Change) -> Change:
        """Returns what a pass writes, as [`RowPart.change`]."""
        return change

    def after(self, canvas: Canvas, row: int) -> None:
        """Called when a pass is written, and its rows are moved on."""

    def leave(self) -> dict[str, Any]:
        """Returns fields of the [`DecodedRow`]."""
        return {}

    def tell(self, progress: Progress, start: int, end: int) -> None:
        """Adds to what a client is told with the tokens from number `start` of the answer to before `end`."""


class Following(RowPart):
    """Has each row followed by its own.

    Args:
        followers_of (`Callable`): gives the followers of a row by its id, in the order in which they are called.
    """

    def __init__(self, followers_of: Callable[[int], Sequence[Follower]]):
        self.followers_of = followers_of

    def enter(self, row_ids: list[int]) -> None:
        for row_id in row_ids:
            for follower in self.followers_of(row_id):
                follower.enter(self.canvas, self.canvas.row_ids.index(row_id))

    def change(self, prediction: TokenPrediction, change: Change) -> Change:
        for row, row_id in enumerate(self.canvas.row_ids):
            for follower in self.followers_of(row_id):
                change = follower.change(self.canvas, row, prediction, change)
        return change

    def after(self, prediction: TokenPrediction, change: Change) -> None:
        for row, row_id in enumerate(self.canvas.row_ids):
            for follower in self.followers_of(row_id):
                follower.after(self.canvas, row)

    def leave(self, row_id: int) -> dict[str, Any]:
        return {name: value for each in self.followers_of(row_id) for name, value in each.leave().items()}
