# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Changes to the scores before tokens are predicted: settings that keep tokens out, and logits processors."""

import torch
from transformers import LogitsProcessorList, RepetitionPenaltyLogitsProcessor

from .canvas import Canvas


class ScoreProcessing:
    """Processes the scores of a pass.

    Processors of transformers know one position per row, so each position is passed as a row of its own, with the
    whole sequence of its row, without padding, as `input_ids`; the position itself is a mask there.

    Args:
        canvas ([`Canvas`]): the rows being decoded.
        processors (`LogitsProcessorList`, *optional*): processors of the caller.
    """

    def __init__(self, canvas: Canvas, processors: LogitsProcessorList | None = None):
        config = canvas.config
        self.canvas = canvas
        self.processors = LogitsProcessorList(processors or [])
        if config.repetition_penalty not in (None, 1.0):
            self.processors.append(RepetitionPenaltyLogitsProcessor(config.repetition_penalty))
        banned = [*(config.suppress_tokens or []), *(token for (token,) in config.bad_words_ids or [])]
        self._banned = sorted(set(banned))
        self._banned_ids: torch.Tensor | None = None

    def __bool__(self) -> bool:
        return bool(self.processors or self._banned or self.canvas.config.min_new_tokens)

    def __call__(self, columns: torch.LongTensor, logits: torch.Tensor) -> torch.Tensor:
        """Returns the processed scores; `columns` is `(rows, columns)`, `logits` `(rows, columns, vocab_size)`."""
        config, canvas = self.canvas.config, self.canvas
        if self.processors:
            rows = [self._process(row, columns[row], row_logits) for row, row_logits in enumerate(logits)]
            logits = torch.stack(rows)
        if self._banned:
            if self._banned_ids is None:
                self._banned_ids = torch.tensor(self._banned, device=logits.device)
            logits = logits.index_fill(-1, self._banned_ids, -torch.inf)
        if config.min_new_tokens:
            is_early = canvas.place.gather(1, columns) < config.min_new_tokens
            for token_id in config.eos_token_ids:
                logits[..., token_id] = logits[..., token_id].masked_fill(is_early, -torch.inf)
        return logits

    def _process(self, row: int, columns: torch.LongTensor, logits: torch.Tensor) -> torch.Tensor:
        start = self.canvas.prompt_start(row)
        sequences = self.canvas.sequences[row, start:].expand(len(logits), -1)
        if self.canvas.revises:
            # A decided token that is predicted again does not repeat itself. (What fills up a row may be padding.)
            places = (columns - start).clamp(min=0)[:, None]
            sequences = sequences.scatter(1, places, self.canvas.config.mask_token_id)
        return self.processors(sequences, logits.float())
