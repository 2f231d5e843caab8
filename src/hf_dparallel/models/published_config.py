# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What the configurations of all families share: they are read from published files, and written as those are."""

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig


class PublishedConfigMixin:
    """Comes before a configuration of transformers, whose settings have the names of the published `config.json`.

    Raises:
        ValueError: if the file describes another architecture.
    """

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


__all__ = ["PublishedConfigMixin"]
