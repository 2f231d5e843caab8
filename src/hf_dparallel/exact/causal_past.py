# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What models with a causal past do another way: they decode by windows of masks."""

import copy
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ..generation.compatibility import refuse_revisions
from ..generation.configuration import DiffusionGenerationConfig
from ..generation.decoder import Decoder
from ..generation.hooks.base import DecodingHook
from ..generation.mixin import DiffusionGenerationMixin
from .decoder import WindowDecoder
from .gate import gate_adapters


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

    def prepare_adapter(self, peft_config: Any) -> Any:
        """Returns the configuration of an adapter to train; that of an autoregressive model acts on masks only.

        Raises a `ValueError` if it would change the answers that it speeds up.
        """
        if not self.is_autoregressive:
            return super().prepare_adapter(peft_config)  # type: ignore[misc]

        if not hasattr(peft_config, "alora_invocation_tokens") or peft_config.use_dora:
            raise ValueError(
                f"`peft_config` must be a plain `LoraConfig` for a model with a causal past, whose adapter acts on "
                f"masks only, got a {type(peft_config).__name__}."
            )
        mask_token_id = self.config.mask_token_id
        for name in _changing_answers(peft_config, mask_token_id):
            raise ValueError(
                f"`{name}={getattr(peft_config, name)!r}` of `peft_config` would change what a model with a causal "
                "past computes for tokens that are no masks. Leave it out."
            )
        peft_config = copy.deepcopy(peft_config)
        peft_config.alora_invocation_tokens = [mask_token_id]
        return peft_config

    def check_student(self, student: nn.Module) -> None:
        """Raises a `ValueError` unless an adapter on its masks is all that is trained of an autoregressive model."""
        if self.is_autoregressive and not gate_adapters(student):
            raise ValueError(
                f"{type(self).__name__} with a causal past keeps its weights: only an adapter on its masks is "
                "trained. Pass `peft_config=LoraConfig(...)`, or `--use_peft`."
            )


def _changing_answers(peft_config: Any, mask_token_id: int) -> list[str]:
    """Returns the settings by which an adapter on masks would change the answers that it speeds up."""
    found = []
    if peft_config.modules_to_save:
        found.append("modules_to_save")

    tokens = peft_config.trainable_token_indices or []
    if isinstance(tokens, dict):
        tokens = sum(tokens.values(), [])
    if not set(tokens) <= {mask_token_id}:
        found.append("trainable_token_indices")

    targets = peft_config.target_modules or []
    if isinstance(targets, str):
        targets = [targets]
    if any(re.fullmatch(target, "lm_head") for target in targets):
        found.append("target_modules")
    return found
