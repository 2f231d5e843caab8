# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Renoising: every pass predicts the whole canvas again, and new noise replaces tokens that it does not accept."""

from collections.abc import Sequence
from typing import Any

import torch

from ..canvas import RowState
from ..configuration import DiffusionGenerationConfig
from ..inputs import vocabulary_size
from ..parts import Change, RowPart
from ..plan import Pass
from ..prediction import TokenPrediction


class Renoising(RowPart):
    """Denoises the open block of each row, a canvas, as a whole (DiffusionGemma).

    A canvas begins with random tokens. In each pass, places that the commit rule accepts get the sampled token, all
    others a new random token; nothing is kept. The sampling temperature falls from pass to pass. The model also gets
    the mean embedding that it predicted for each token in the pass before. The likeliest tokens are the answer
    once they stay the same and are certain, or after the last pass.

    Until then nothing is decided, so all tokens of the canvas are masked. Random numbers are drawn in the order of
    transformers: the canvas, then in each pass the tokens and the noise.
    """

    def __init__(self, config: DiffusionGenerationConfig):
        self.config = config
        # The likeliest tokens in the last pass, and for how many passes they have been the likeliest.
        self.likeliest = RowState(-1, is_wide=True)
        self.num_stable = RowState(0, is_wide=False)
        # By row: how many canvases it has entered, and from the second pass on the mean embeddings of the last one.
        self._num_entered: dict[int, int] = {}
        self._expected: dict[int, torch.Tensor] = {}

    def extend(self, planned: Pass) -> Pass:
        """Fills newly entered canvases with noise, and shows the pass the mean embeddings of the last one."""
        canvas = self.canvas
        entered = [self._num_entered.get(row_id, 0) for row_id in canvas.row_ids]
        rows = [row for row, number in enumerate(entered) if canvas.status[row].open_from == number]
        if rows:
            row_ids = [canvas.row_ids[row] for row in rows]
            columns, _ = canvas.open_columns()
            index = torch.tensor(rows, device=columns.device)
            canvas.sequences[index[:, None], columns[index]] = self._noise(row_ids)
            self._num_entered |= {row_id: entered[row] + 1 for row, row_id in zip(rows, row_ids, strict=True)}
        return planned._replace(embed=self._embed)

    def _embed(self, planned: Pass, input_ids: torch.LongTensor) -> torch.Tensor:
        embeddings = self.model.embed_canvas(input_ids)
        none = torch.zeros_like(embeddings[0])
        expected = torch.stack([self._expected.get(row_id, none) for row_id in self.canvas.row_ids])
        return self.model.condition(embeddings, expected)

    def scores(self, columns: torch.LongTensor, logits: torch.Tensor) -> torch.Tensor:
        """Divides the scores by the temperature of the pass."""
        config, steps = self.config, self.config.max_denoising_steps
        left = (steps - self.canvas.step_in_block) / steps
        temperature = config.t_min + (config.t_max - config.t_min) * left
        return logits.div_(temperature[:, None, None].to(logits.device))

    def change(self, prediction: TokenPrediction, change: Change) -> Change:
        canvas, columns, likeliest = self.canvas, prediction.columns, prediction.likeliest
        is_same = (likeliest == self.likeliest.value.gather(1, columns)).all(dim=1)
        self.num_stable.value = (self.num_stable.value + 1) * is_same
        self.likeliest.value = self.likeliest.value.scatter(1, columns, likeliest)
        is_sure = prediction.entropy.mean(dim=1) < self.config.stop_entropy
        is_over = is_sure & (self.num_stable.value >= self.config.stability_threshold)
        is_over |= canvas.step_in_block + 1 >= self.config.max_denoising_steps
        renoised = torch.where(change.accepted, prediction.tokens, self._noise(canvas.row_ids))
        canvas.sequences = canvas.sequences.scatter(1, columns, renoised)
        return Change(likeliest, is_over[:, None].expand_as(likeliest))

    def after(self, prediction: TokenPrediction, change: Change) -> None:
        self._expected = {
            row_id: self.model.expected_embeddings(logits)
            for row_id, status, logits in zip(self.canvas.row_ids, self.canvas.status, prediction.logits, strict=True)
            if not status.is_finished and status.open_from < self._num_entered[row_id]
        }

    def leave(self, row_id: int) -> dict[str, Any]:
        self._expected.pop(row_id, None)
        return {"encoder_passes": self._num_entered.pop(row_id, 0)}

    def _noise(self, row_ids: Sequence[int]) -> torch.LongTensor:
        """Draws random tokens for the canvases of these rows."""
        size, vocabulary, device = self.config.block_length, vocabulary_size(self.model), self.canvas.masked.device
        generators = self.canvas.generators
        if not generators:
            return torch.randint(vocabulary, (len(row_ids), size), device=device)
        drawn = [torch.randint(vocabulary, (size,), generator=generators[row_id], device=device) for row_id in row_ids]
        return torch.stack(drawn)
