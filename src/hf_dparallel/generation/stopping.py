# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Answers that end before an end token does it: stopping criteria, stop strings, a time limit."""

import time
from collections.abc import Sequence

import torch
from transformers import PreTrainedTokenizerBase, StoppingCriteria, StoppingCriteriaList

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
            length = self._first_stop(row, self._checked[row_id], min(status.num_final, status.length))
            if length is not None:
                self.canvas.end_row(row, length)
            self._checked[row_id] = status.num_final

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


class StopTextCriteria(StoppingCriteria):
    """Holds when the text of the answer, without the prompt, contains one of the strings.

    That of transformers needs tokens that begin and end with parts of the strings, which not every tokenizer has.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): decodes the answer.
        strings (`Sequence[str]`): the strings; empty ones end nothing.
        skip_special_tokens (`bool`): whether special tokens are no part of the text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, strings: Sequence[str], skip_special_tokens: bool = True):
        self.tokenizer = tokenizer
        self.strings = [text for text in strings if text]
        self.skip_special_tokens = skip_special_tokens

    def __call__(self, input_ids: torch.LongTensor, scores, answer_start: int = 0, **kwargs) -> torch.BoolTensor:
        texts = self.tokenizer.batch_decode(input_ids[:, answer_start:], skip_special_tokens=self.skip_special_tokens)
        return torch.tensor([any(stop in text for stop in self.strings) for text in texts], device=input_ids.device)

    def cut(self, tokens: list[int]) -> list[int]:
        """The tokens up to and including the first one with which it holds."""
        ids = torch.tensor([tokens])
        return next((tokens[:end] for end in range(1, len(tokens) + 1) if self(ids[:, :end], None)), tokens)


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
        ValueError: if there are stop strings and no tokenizer, or criteria and no answer to end.
    """
    criteria = StoppingCriteriaList(criteria or [])
    if criteria and not config.max_new_tokens:
        raise ValueError("`stopping_criteria` end an answer, and `max_new_tokens=0` has none to end. Leave them out.")
    if config.stop_strings:
        if tokenizer is None:
            raise ValueError(
                f"`stop_strings={config.stop_strings!r}` needs the tokenizer: pass `tokenizer=` to `generate`."
            )
        strings = [config.stop_strings] if isinstance(config.stop_strings, str) else config.stop_strings
        criteria.append(StopTextCriteria(tokenizer, strings, skip_special_tokens=False))
    return criteria
