# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What models with a causal past do another way: they decode by windows of masks."""

from collections.abc import Callable, Sequence

import torch

from ..generation.configuration import DiffusionGenerationConfig
from ..generation.decoder import Decoder
from ..generation.hooks.base import DecodingHook
from ..generation.mixin import DiffusionGenerationMixin
from .decoder import WindowDecoder


class CausalPastMixin(DiffusionGenerationMixin):
    """Gives exact decoding to models whose decided tokens are causal."""

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
