# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What makes a family: configurations as in the published files, and registration with the Auto classes."""

from collections.abc import Mapping
from typing import Any

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)


class PublishedConfigMixin:
    """Comes before a configuration of transformers, whose settings have the names of the published `config.json`."""

    # Read by `create_causal_mask` and the attention functions of transformers: the mask says what is visible.
    is_causal = False
    # Switches of the published file, with the values that all checkpoints of the family have.
    only_supported: Mapping[str, Any] = {}

    def __post_init__(self: PreTrainedConfig, **kwargs):
        family = type(self).__name__.removesuffix("Config")
        for name, expected in self.only_supported.items():
            value = kwargs.get(name, getattr(self, name, expected))
            if value != expected:
                raise ValueError(
                    f"`{name}={value!r}` is not supported by {family}ForMaskedDiffusion, which implements "
                    f"`{name}={expected!r}`, the value of all published {family} checkpoints."
                )
        # The remote code it points to does not run on transformers 5, and is not saved beside our weights.
        kwargs.pop("auto_map", None)
        super().__post_init__(**kwargs)  # type: ignore[misc]
        # Where the published code looks for it.
        self.rope_theta = self.rope_parameters["rope_theta"]


def register_family(
    model_class: type[PreTrainedModel], tokenizer_class: type[PreTrainedTokenizerBase] | None = None
) -> None:
    """Makes the Auto classes load a family; of several libraries that register a `model_type` the last wins.

    The published repositories name `AutoModel` and, but for Dream, `AutoModelForCausalLM` in their `auto_map`, so
    scripts that were written for them find our classes there too.
    """
    config_class = model_class.config_class
    AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
    for auto_class in (AutoModel, AutoModelForMaskedLM, AutoModelForCausalLM):
        auto_class.register(config_class, model_class, exist_ok=True)
    if tokenizer_class is not None:
        AutoTokenizer.register(config_class, tokenizer_class=tokenizer_class, exist_ok=True)
