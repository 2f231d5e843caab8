# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Answers that end before an end token does it: stopping criteria, stop strings, a time limit."""

import time

import torch
from transformers import PreTrainedTokenizerBase, StoppingCriteriaList, StopStringCriteria

from .canvas import Canvas
from .configuration import DiffusionGenerationConfig


class StopCheck:
    """Ends the answers for which a stopping criterion holds.

    Criteria look at the end of a sequence. To mean the same as in left-to-right decoding they are called for every
    newly decided token, also when several were committed in one pass, with the row as it is without padding.
    """

    def __init__(self, canvas: Canvas, criteria: StoppingCriteriaList):
        self.canvas = canvas
        self.criteria = criteria
        # By row, how many tokens have been looked at.
        self._checked: dict[int, int] = {}

    def update(self) -> None:
        """Looks at the tokens decided since the last call."""
        self._checked = {row_id: self._checked.get(row_id, 0) for row_id in self.canvas.row_ids}
        for row, row_id in enumerate(self.canvas.row_ids):
            status = self.canvas.status[row]
            length = self._first_stop(row, self._checked[row_id], min(status.num_decided, status.length))
            if length is not None:
                self.canvas.end_row(row, length)
            self._checked[row_id] = status.num_decided

    def _first_stop(self, row: int, checked: int, decided: int) -> int | None:
        """Tokens up to the first newly decided one at which a criterion holds."""
        canvas = self.canvas
        sequence = canvas.sequences[row : row + 1, canvas.prompt_start(row) :]
        # Where the answer begins, for criteria that must not look at the prompt.
        start = canvas.answer_start(row) - canvas.prompt_start(row)
        lengths = range(checked + 1, decided + 1)
        holds = [self.criteria(sequence[:, : start + length], None, answer_start=start).all() for length in lengths]
        # One wait for the device a row, however many tokens it has decided.
        stops = torch.stack(holds).tolist() if holds else []
        return next((length for length, stop in zip(lengths, stops, strict=True) if stop), None)


class TimeLimit:
    """Ends all rows when their time is over: each answer ends before its first undecided token."""

    def __init__(self, canvas: Canvas, seconds: float):
        self.canvas = canvas
        self.seconds = seconds
        self._started = time.monotonic()

    def update(self) -> None:
        """Looks at the clock."""
        if time.monotonic() - self._started < self.seconds:
            return
        for row, status in enumerate(self.canvas.status):
            if not status.is_finished:
                self.canvas.end_row(row, min(status.num_decided, status.length))


def stopping_criteria(
    criteria: StoppingCriteriaList | None,
    config: DiffusionGenerationConfig,
    tokenizer: PreTrainedTokenizerBase | None,
) -> StoppingCriteriaList:
    """The criteria of the caller and the stop strings of the configuration.

    Raises:
        ValueError: if there are stop strings and no tokenizer.
    """
    criteria = StoppingCriteriaList(criteria or [])
    if config.stop_strings:
        if tokenizer is None:
            raise ValueError(
                f"`stop_strings={config.stop_strings!r}` needs the tokenizer: pass `tokenizer=` to `generate`."
            )
        criteria.append(StopStringCriteria(tokenizer=tokenizer, stop_strings=config.stop_strings))
    return criteria
