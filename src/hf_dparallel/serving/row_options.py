# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""JSON answers, log-probabilities and drafts: what some rows of a batch need of each pass beside their tokens."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.utils import logging

from ..generation.parts import Change, RowPart
from ..generation.prediction import TokenPrediction
from .json import JsonAnswer


logger = logging.get_logger(__name__)


@dataclass
class Draft:
    """A part of the answer after a pass. It replaces everything that was sent from place `start` on."""

    start: int
    tokens: list[int]
    # The pass that committed each token, -1 for a mask.
    commit_step: list[int]
    # The probability of the likeliest token for each mask, by its place in the answer.
    confidence: dict[int, float] = field(default_factory=dict)


@dataclass
class TokenLogprobs:
    """The log-probability of a token, in nats, at temperature 1 over the whole vocabulary, as in commit rules.

    `top` has the likeliest tokens at the same place with their log-probabilities. The mask token, which is never
    committed, is not among them.
    """

    logprob: float
    top: list[tuple[int, float]] = field(default_factory=list)


@dataclass
class RowOptions:
    """What a row needs beside its tokens, and what the last pass gave of it.

    Args:
        json (`JsonAnswer`, *optional*): the schema that the answer follows.
        num_logprobs (`int`, *optional*): how many likeliest tokens are given with the log-probability of each token.
            By default there are no log-probabilities.
        has_drafts (`bool`): whether each pass gives a draft.
    """

    json: JsonAnswer | None = None
    num_logprobs: int | None = None
    has_drafts: bool = False
    # By place in the answer. Of a revised token, these are from its last commit; given tokens have none.
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict, init=False)
    draft: Draft | None = field(default=None, init=False)
    # The first place that the next pass may change: until a row leaves a block, tokens in it may be revised.
    first_open: int = field(default=0, init=False)


class OptionsPart(RowPart):
    """Applies the options of each row. `options` has them by row id; rows that are given up are no longer in it."""

    def __init__(self, options: Mapping[int, RowOptions]):
        self._options = options
        self._errors: dict[int, Exception] = {}

    def enter(self, row_ids: list[int]) -> None:
        """Writes the text at the beginning of JSON answers."""
        for row, row_id, options in self._rows():
            if row_id in row_ids and options.json is not None:
                with self._ending_row(row_id):
                    self.canvas.begin(row, options.json.given())

    def change(self, prediction: TokenPrediction, change: Change) -> Change:
        """Keeps the predictions that fit JSON answers."""
        for row, row_id, options in self._rows():
            if options.json is not None:
                with self._ending_row(row_id):
                    change = self._guided(row, options.json, prediction, change)
        return change

    def after(self, prediction: TokenPrediction, change: Change) -> None:
        """Reads the log-probabilities and the drafts."""
        for row, row_id, options in self._rows():
            if row_id in self._errors:
                self.canvas.end_row(row, 0)
            if options.num_logprobs is not None:
                self._read_logprobs(row, options, prediction, change)
            if options.has_drafts:
                self._read_draft(row, options, prediction)

    def leave(self, row_id: int) -> dict[str, Any]:
        """Returns an `error` if the schema has reached one of its limits, after which only the end fits."""
        options = self._options.get(row_id)
        error = self._errors.pop(row_id, None)
        if error is None and options is not None and options.json is not None:
            error = options.json.error()
        return {} if error is None else {"error": error}

    def _rows(self) -> Iterator[tuple[int, int, RowOptions]]:
        for row, row_id in enumerate(self.canvas.row_ids):
            if row_id in self._options:
                yield row, row_id, self._options[row_id]

    @contextmanager
    def _ending_row(self, row_id: int) -> Iterator[None]:
        """Ends a row with the error that is raised in the context, whatever it is. The other rows go on."""
        try:
            yield
        except Exception as error:
            logger.error("A JSON answer failed; its row ends with an error.", exc_info=True)
            self._errors[row_id] = error

    def _guided(self, row: int, answer: JsonAnswer, prediction: TokenPrediction, change: Change) -> Change:
        """Returns the change with the predictions that fit, and writes the fixed text after them into the canvas."""
        status, columns = self.canvas.status[row], self.canvas.answer(row)
        # The first columns are the masks, from left to right. In block-causal models some are after the answer.
        num_masks = min(status.num_open, columns.stop - columns.start - status.num_decided)
        num_accepted = [*change.accepted[row, :num_masks].tolist(), False].index(False)
        predicted = change.tokens[row, : max(num_accepted, 1)].tolist()
        kept, given = answer.commit(predicted, prediction.logits[row, 0])
        self.canvas.write(row, status.num_decided + len(kept), given)
        tokens, written = change.tokens.clone(), change.accepted.clone()
        tokens[row, : len(kept)] = tokens.new_tensor(kept)
        written[row] = torch.arange(written.shape[1], device=written.device) < len(kept)
        return change._replace(tokens=tokens, accepted=written)

    def _read_logprobs(self, row: int, options: RowOptions, prediction: TokenPrediction, change: Change) -> None:
        written = change.accepted[row]
        places = prediction.columns[row, written] - self.canvas.answer(row).start
        logits = prediction.logits[row, written]
        log_probs = torch.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        chosen = log_probs.gather(1, change.tokens[row, written, None]).squeeze(1)
        log_probs[:, self.canvas.config.mask_token_id] = -torch.inf
        top = log_probs.topk(min(options.num_logprobs or 0, logits.shape[-1] - 1), dim=-1)
        listed = (places.tolist(), chosen.tolist(), top.indices.tolist(), top.values.tolist())
        for place, logprob, top_ids, top_logprobs in zip(*listed, strict=True):
            options.logprobs[place] = TokenLogprobs(logprob, list(zip(top_ids, top_logprobs, strict=True)))

    def _read_draft(self, row: int, options: RowOptions, prediction: TokenPrediction) -> None:
        canvas, status = self.canvas, self.canvas.status[row]
        first = canvas.answer(row).start
        open_from, end = canvas.open_edges(row)
        if status.is_finished:
            end = first + min(status.length, status.length_to_eos)
        columns = slice(first + options.first_open, end)
        commit_step = torch.where(canvas.masked[row, columns], -1, canvas.commit_step[row, columns])
        places = (prediction.columns[row] - first).tolist()
        confidence = dict(zip(places, prediction.confidence[row].tolist(), strict=True))
        tokens = canvas.sequences[row, columns].tolist()
        options.draft = Draft(options.first_open, tokens, commit_step.tolist(), confidence)
        # The first block may start in the prompt.
        options.first_open = max(open_from - first, 0)
