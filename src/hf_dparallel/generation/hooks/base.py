# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The interface of everything that the decoding loop calls and does not know."""

from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from hf_dparallel_rules.certainty import TokenPrediction

from ..canvas import Canvas
from ..plan import Pass


class Change(NamedTuple):
    """The changes of a pass to the canvas, each `(rows, tokens)`."""

    # The mask token at a place that is committed masks it again.
    tokens: torch.LongTensor
    # The places whose tokens are written.
    commits: torch.BoolTensor
    # Tokens that keep a row in its block though they are no masks.
    pending: torch.BoolTensor | None = None


class DecodingHook:
    """Takes part in a decode. A decoder calls its hooks in order, in each pass, and when rows enter and leave.

    Attributes:
        revises (`bool`): whether it changes decided tokens of the open blocks.
        looks_ahead (`bool`): whether it also needs the scores of masks in blocks that are not open yet.
        model ([`~transformers.PreTrainedModel`]), canvas ([`Canvas`]): the model, and the rows being decoded.
    """

    revises = False
    looks_ahead = False
    model: PreTrainedModel
    canvas: Canvas

    def attach(self, model: PreTrainedModel, canvas: Canvas) -> None:
        """Connects the hook to a model and a canvas, once, before any row enters."""
        self.model = model
        self.canvas = canvas

    def enter(self, row_ids: list[int]) -> None:
        """Runs when rows have entered the canvas."""

    def extend(self, planned: Pass) -> Pass:
        """Returns the pass to run, given the pass that the cache needs."""
        return planned

    def scores(self, columns: torch.LongTensor, masked: torch.BoolTensor, logits: torch.Tensor) -> torch.Tensor:
        """Returns the scores to predict tokens from, `(rows, columns, vocab_size)`, at `(rows, columns)`.

        Those that are `masked` are predicted; the others are there to be revised, or to fill up a row.
        """
        return logits

    def change(self, prediction: TokenPrediction, change: Change) -> Change:
        """Returns the change that the pass writes, given the change of the commit rule and of earlier hooks."""
        return change

    def after(self, prediction: TokenPrediction, change: Change) -> None:
        """Runs when the change of a pass is written and its rows have moved on."""

    def leave(self, row_id: int) -> dict[str, Any]:
        """Runs when a row is finished or removed, and returns fields of its [`DecodedRow`]."""
        return {}
