# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Editing: decided tokens are replaced where the model now prefers others."""

import torch
from transformers import PreTrainedModel

from hf_dparallel_rules.certainty import TokenPrediction, measure_certainty

from ..canvas import Canvas
from ..configuration import DiffusionGenerationConfig
from ..hooks.base import Change, DecodingHook


class Editing(DecodingHook):
    """Replaces decided tokens where the model, which sees them, now prefers others (LLaDA2.1).

    A row stays in its blocks until a pass that began without a mask has replaced nothing, or until there were
    `max_post_steps` of these passes (https://huggingface.co/papers/2602.08676).
    """

    revises = True
    setting = "editing_threshold"

    def __init__(self, config: DiffusionGenerationConfig):
        self.config = config

    def attach(self, model: PreTrainedModel, canvas: Canvas) -> None:
        super().attach(model, canvas)
        # The passes since the open blocks had a mask.
        self.full_passes = canvas.row_tensor(0, is_wide=False)

    def change(self, prediction: TokenPrediction, change: Change) -> Change:
        likeliest = prediction
        if self.config.temperature:  # A replacement is never sampled.
            likeliest = measure_certainty(prediction.logits, self.config.mask_token_id)
        differs = likeliest.tokens != self.canvas.sequences.gather(1, prediction.columns)
        is_sure = likeliest.confidence > self.config.editing_threshold
        edited = prediction.revisable & differs & is_sure

        masked = prediction.masked
        is_full = ~(masked & ~change.commits).any(dim=1)
        num_passes = (self.full_passes.value + 1).masked_fill(masked.any(dim=1), 0)
        self.full_passes.value = num_passes
        is_over = is_full & (num_passes >= self.config.max_post_steps)

        return Change(
            tokens=torch.where(edited, likeliest.tokens, prediction.tokens),
            commits=change.commits | edited,
            pending=(masked | edited) & ~is_over[:, None],
        )
