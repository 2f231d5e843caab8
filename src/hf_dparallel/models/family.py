# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What makes a family: configurations as in the published files, and registration with the Auto classes."""

from collections.abc import Mapping
from typing import Any, TypeVar

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from hf_dparallel_rules.published import read_ready
from hf_dparallel_rules.settings import SETTINGS


ModelClass = TypeVar("ModelClass", bound=type[PreTrainedModel])

# The keys of block-causal files, by which a family with full attention is told apart from them.
NO_BLOCKS: dict[str, Any] = dict.fromkeys(
    ("bd_size", "block_size"),
    "Its tokens attend to all others. Load a block-causal model with the classes of its family.",
)


def ready_students() -> dict[str, dict[str, Any]]:
    """Returns what published students need, by name: the rows of `ready.toml`."""
    return {row["name"]: row for row in read_ready()}


class PublishedConfigMixin:
    """Comes before a configuration of transformers, whose settings have the names of the published `config.json`."""

    # Read by `create_causal_mask` and the attention functions of transformers: the mask says what is visible.
    is_causal = False
    # Settings that change what a model computes, with the only value that is implemented. They are written into every
    # file, because the published code reads them.
    required_values: Mapping[str, Any] = {"use_sliding_window": False}
    # Which positions see which others: "full"; "block_causal" in blocks of `block_length` tokens; or "causal_past".
    attention = "full"
    # Where such blocks are counted from: the first token of the "sequence", or of the "answer".
    block_origin = "sequence"
    # Other models under the same `model_type`, by a key that only their files have: their configuration, or what they
    # are where not implemented.
    other_architectures: Mapping[str, type[PreTrainedConfig] | str] = {}
    # Settings that published files leave to `from_pretrained`, and that a student has to remember.
    given_at_load: tuple[str, ...] = ()
    # By serving engine, the name of its class for the family.
    served_as: Mapping[str, str] = {}

    def __post_init__(self: PreTrainedConfig, **kwargs):
        for key, other in self.other_architectures.items():
            if kwargs.get(key) is not None:
                remedy = other if isinstance(other, str) else f"Use {other.__name__}, as `from_pretrained` does."
                raise ValueError(f"`{key}={kwargs[key]!r}` does not fit a {type(self).__name__}. {remedy}")

        # The remote code it points to does not run on transformers 5, and is not saved beside our weights.
        kwargs.pop("auto_map", None)
        # The class decides these.
        for name in ("model_type", "attention"):
            kwargs.pop(name, None)
        for name, value in self.required_values.items():
            if value is not None and not hasattr(self, name):
                kwargs.setdefault(name, value)
        super().__post_init__(**kwargs)  # type: ignore[misc]

        rope = self.rope_parameters
        # Where the published code looks for it.
        self.rope_theta = rope["rope_theta"]

        for name, expected in self.required_values.items():
            self._check(name, [getattr(self, name, expected)], [expected])

        SETTINGS["block_length"].read(getattr(self, "block_length", None))
        self._check("is_causal", [self.is_causal], [False])
        self._check("layer_types", getattr(self, "layer_types", None) or [], ["full_attention"])
        self._check("rope_type", [rope.get("rope_type", "default")], ["default", *ROPE_INIT_FUNCTIONS])
        if not hasattr(type(self), "partial_rotary_factor"):
            self._check("partial_rotary_factor", [rope.get("partial_rotary_factor", 1.0)], [1.0])

    def loaded_with(self) -> dict[str, Any]:
        """Returns the settings that published files leave to `from_pretrained`."""
        return {name: getattr(self, name) for name in self.given_at_load}

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, **kwargs) -> PreTrainedConfig:
        """Tells [`from_dict`] the name, as `AutoConfig` does."""
        kwargs.setdefault("name_or_path", pretrained_model_name_or_path)
        return super().from_pretrained(pretrained_model_name_or_path, **kwargs)  # type: ignore[misc]

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs) -> PreTrainedConfig:
        """Returns the configuration of the family whose file has these settings.

        Adds what the file of a ready student leaves to the caller. Leaves out the attention implementation that
        published files name: it was used for training on GPUs.
        """
        student = ready_students().get(str(kwargs.get("name_or_path")), {})
        config_dict = student.get("config", {}) | config_dict
        for key, other in cls.other_architectures.items():
            if config_dict.get(key) is not None and not isinstance(other, str):
                return other.from_dict(config_dict, **kwargs)

        config_dict.pop("attn_implementation", None)
        return super().from_dict(config_dict, **kwargs)  # type: ignore[misc]

    def _check(self, name: str, values: list, supported: list) -> None:
        for value in values:
            if value not in supported:
                family = type(self).__name__.removesuffix("Config")
                raise ValueError(
                    f"`{name}={value!r}` is not supported by {family}ForMaskedDiffusion, which implements "
                    f"{' and '.join(map(repr, supported))}, as all published {family} checkpoints have it."
                )


def register_family(model_class: ModelClass) -> ModelClass:
    """Makes the Auto classes load a family; of several libraries that register a `model_type` the last wins.

    The published repositories name `AutoModel` and, but for Dream, `AutoModelForCausalLM` in their `auto_map`, so
    scripts that were written for them find our classes there too.
    """
    config_class = model_class.config_class
    AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
    for auto_class in (AutoModel, AutoModelForMaskedLM, AutoModelForCausalLM):
        auto_class.register(config_class, model_class, exist_ok=True)
    return model_class
