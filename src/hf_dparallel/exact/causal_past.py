# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What models with a causal past do another way: masks draft tokens for them."""

import copy
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig

from ..generation.compatibility import refuse_revisions
from ..generation.configuration import DiffusionGenerationConfig
from ..generation.decoder import Decoder
from ..generation.hooks.base import DecodingHook
from ..generation.mixin import DiffusionGenerationMixin
from .decoder import SpeculativeDecoder
from .gate import gate_adapters


# Settings of a LoRA for modules that see all tokens, or for another kind than the activated one.
_NOT_GATED = (
    "modules_to_save",
    "target_parameters",
    "layer_replication",
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "velora_config",
    "monteclora_config",
    "arrow_config",
    "kasa_config",
)


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
        """Returns the decoder of a resolved configuration: by drafts if it is exact, or the model autoregressive."""
        if config.exact or self.is_autoregressive:
            return SpeculativeDecoder(self, config, hooks, generator_for)
        return super().make_decoder(config, hooks, generator_for)

    def prepare_adapter(self, peft_config: Any) -> Any:
        """Returns the configuration of an adapter to train; that of an autoregressive model acts on masks only.

        Raises a `ValueError` if it would change the answers that it speeds up.
        """
        if not self.is_autoregressive:
            return super().prepare_adapter(peft_config)  # type: ignore[misc]

        if not hasattr(peft_config, "alora_invocation_tokens"):
            raise ValueError(
                "`peft_config` must be a `LoraConfig` for a model with a causal past, whose adapter acts on masks "
                f"only, got a {type(peft_config).__name__}."
            )
        for name in _acting_elsewhere(peft_config, self.config):
            raise ValueError(
                f"`{name}={getattr(peft_config, name)!r}` of `peft_config` does not go with a causal past, where an "
                "adapter acts on masks and the answers of its base stay. Leave it out."
            )
        peft_config = copy.deepcopy(peft_config)
        peft_config.alora_invocation_tokens = [self.config.mask_token_id]
        return peft_config

    def check_student(self, student: nn.Module) -> None:
        """Raises a `ValueError` unless an adapter on its masks is all that is trained of an autoregressive model."""
        if self.is_autoregressive and not gate_adapters(student):
            raise ValueError(
                f"{type(self).__name__} with a causal past keeps its weights: only an adapter on its masks is "
                "trained. Pass `peft_config=LoraConfig(...)`, or `--use_peft`."
            )


def _acting_elsewhere(peft_config: Any, config: PreTrainedConfig) -> list[str]:
    """Returns the settings by which a LoRA would act on other tokens than masks, or be none that can be gated."""
    found = [name for name in _NOT_GATED if getattr(peft_config, name, None)]

    tokens = peft_config.trainable_token_indices or []
    if isinstance(tokens, dict):
        tokens = sum(tokens.values(), [])
    # A mask token after the vocabulary has no embedding of its own to train.
    trainable = {config.mask_token_id} - {config.vocab_size}
    if not set(tokens) <= trainable:
        found.append("trainable_token_indices")

    targets = peft_config.target_modules or []
    if isinstance(targets, str):
        targets = [targets]
    others = ("lm_head", "embed_tokens", "model.embed_tokens")
    if any(re.fullmatch(target, other) for target in targets for other in others):
        found.append("target_modules")
    return found
