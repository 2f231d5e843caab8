# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Processes the scores of a pass."""

import torch
from transformers import (
    LogitsProcessorList,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
)
from transformers.utils import logging

from hf_dparallel_rules.settings import SETTINGS, settings_of

from ..configuration import DiffusionGenerationConfig
from .base import DecodingHook


logger = logging.get_logger(__name__)

# The settings that do what a processor of transformers does.
_SETTING_OF = {
    NoRepeatNGramLogitsProcessor: "no_repeat_ngram_size",
    RepetitionPenaltyLogitsProcessor: "repetition_penalty",
    SuppressTokensLogitsProcessor: "suppress_tokens",
}


class ScoreProcessing(DecodingHook):
    """Processes the scores of a pass: logits processors, and settings that keep tokens out.

    Processors of transformers know one position per row, so each position is passed as a row of its own, with the
    whole sequence of its row, without padding, as `input_ids`; the position itself is a mask there.
    """

    def __init__(self, config: DiffusionGenerationConfig, processors: LogitsProcessorList | None = None):
        self.processors = LogitsProcessorList(processors or [])
        for processor in self.processors:
            name = _SETTING_OF.get(type(processor), "")
            if config.is_on(name):
                # As in transformers.
                logger.warning_once(
                    f"`{name}={getattr(config, name)!r}` gives way to the {type(processor).__name__} that was passed."
                )
                config = config.updated(**{name: SETTINGS[name].default})

        self.config = config
        if config.is_on("no_repeat_ngram_size"):
            self.processors.insert(0, NoRepeatNGramLogitsProcessor(config.no_repeat_ngram_size))
        self.penalty: RepetitionPenaltyLogitsProcessor | None = None
        if config.is_on("repetition_penalty"):
            self.penalty = RepetitionPenaltyLogitsProcessor(config.repetition_penalty)
        self._banned = torch.tensor(config.suppress_tokens, dtype=torch.long)

    def __bool__(self) -> bool:
        is_set = any(map(self.config.is_on, settings_of("processing")))
        return bool(self.processors) or is_set

    def scores(self, columns: torch.LongTensor, masked: torch.BoolTensor, logits: torch.Tensor) -> torch.Tensor:
        config = self.config
        if len(self._banned):
            self._banned = self._banned.to(logits.device)  # copied once
            logits = logits.index_fill(-1, self._banned, -torch.inf)

        if config.min_new_tokens:
            is_early = (~self.canvas.is_given).cumsum(dim=1).gather(1, columns) <= config.min_new_tokens
            for token_id in config.eos_token_ids:
                logits[..., token_id] = logits[..., token_id].masked_fill(is_early, -torch.inf)

        if self.processors or self.penalty:
            rows = [self._process(row, columns[row], logits[row]) for row in range(len(self.canvas))]
            # Lines after the rows are padding.
            logits = torch.cat([torch.stack(rows), logits[len(rows) :].to(rows[0].dtype)])
        return logits

    def _process(self, row: int, columns: torch.LongTensor, logits: torch.Tensor) -> torch.Tensor:
        canvas = self.canvas
        mask_token_id = self.config.mask_token_id
        start = canvas.prompt_start(row)
        sequences = canvas.sequences[row, start:].expand(len(logits), -1)
        if canvas.revises:
            # A decided token is no repetition of itself. (Columns that only fill up a row may be padding.)
            inside = (columns - start).clamp(min=0)[:, None]
            sequences = sequences.scatter(1, inside, mask_token_id)

        scores = logits.float()
        if self.penalty is not None:
            # A mask is no repetition, and its score is part of the certainty of the other tokens.
            of_mask = scores[:, mask_token_id]
            scores = self.penalty(sequences, scores)
            scores[:, mask_token_id] = of_mask
        # The caller's processors have the last word, as in transformers.
        return self.processors(sequences, scores)
