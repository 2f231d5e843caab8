# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Processes the scores of drafts as those of one token at a time."""

from collections.abc import Callable

import torch
from transformers import LogitsProcessorList

from ..generation.hooks.processing import ScoreProcessing
from ..generation.inputs import vocabulary_size


class CausalScores(ScoreProcessing):
    """Processes scores as one token at a time would: processors never see a token that is not decided.

    `pick` returns the token at an open place of a row, by its scores, `(1, vocab_size)`.
    """

    def __init__(self, processing: ScoreProcessing, pick: Callable[[int, int, torch.Tensor], torch.Tensor]):
        super().__init__(processing.config)
        self.pick = pick
        self.processors = processing.processors
        # As in transformers, whose list ends with the caller's.
        self.in_order = LogitsProcessorList([self.penalty] if self.penalty else [])
        self.in_order += self.processors

    def _process(self, row: int, columns: torch.LongTensor, logits: torch.Tensor) -> torch.Tensor:
        canvas = self.canvas
        ends = self.config.eos_token_ids if self.config.stop_at_eos else []
        start = canvas.prompt_start(row)
        sequence = canvas.input_ids()[row, start:]
        first = canvas.open_edges(row)[0] - start

        scores = logits.float().clone()
        for place in range(canvas.status[row].num_open):
            length = first + place
            # Processors know the vocabulary of the model, without a mask token after it.
            of_words = scores[place : place + 1, : vocabulary_size(self.model)]
            of_words.copy_(self.in_order(sequence[None, :length], of_words))

            token = int(self.pick(row, place, scores[place : place + 1]))
            if token != sequence[length] or token in ends:
                break
        return scores
