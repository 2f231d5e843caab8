# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What models with a causal past do another way: they decode by windows of masks."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..generation.compatibility import refuse_revisions
from ..generation.configuration import DiffusionGenerationConfig
from ..generation.decoder import Decoder
from ..generation.hooks.base import DecodingHook
from ..generation.mixin import DiffusionGenerationMixin
from .decoder import WindowDecoder


class CausalPastMixin(DiffusionGenerationMixin):
    """Gives exact decoding to models whose decided tokens are causal."""

    @property
    def is_autoregressive(self) -> bool:
        """Returns whether causal logits are those of an autoregressive model, token by token."""
        return self.attention == "causal_past" and self.shift_logits

    def default_settings(self) -> dict[str, Any]:
        """Returns the defaults that the attention of the model decides: an autoregressive one is decoded exactly."""
        return super().default_settings() | {"exact": self.is_autoregressive}

    def check_settings(self, config: DiffusionGenerationConfig) -> None:
        """Raises a [`SettingError`] if settings of a resolved configuration contradict one another or the model."""
        super().check_settings(config)
        if self.is_autoregressive:
            refuse_revisions(config, self)

    def make_decoder(
        self,
        config: DiffusionGenerationConfig,
        hooks: Sequence[DecodingHook],
        generator_for: Callable[[int], torch.Generator] | None = None,
    ) -> Decoder:
        """Returns the decoder of a resolved configuration: by windows if it is exact, or the model autoregressive."""
        if config.exact or self.is_autoregressive:
            return WindowDecoder(self, config, hooks, generator_for)
        return super().make_decoder(config, hooks, generator_for)
