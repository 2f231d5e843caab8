# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Checks settings against one another and against the model, by the table of settings."""

import inspect
from collections.abc import Callable
from typing import Any

from transformers import PreTrainedModel

from hf_dparallel_rules.settings import SETTINGS, Config, Setting, SettingError, settings_called


def longest_sequence(model: PreTrainedModel) -> int | None:
    """Returns how many tokens, prompt and answer together, a model was trained for, or `None` if unknown."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def has_adapter(model: PreTrainedModel) -> bool:
    """Returns whether PEFT adapters are loaded into the model."""
    return getattr(model, "_hf_peft_config_loaded", False)


def active_adapter(model: PreTrainedModel) -> str | None:
    """Returns PEFT's name of the active adapter, or `None`."""
    return model.active_adapters()[0] if has_adapter(model) else None


def set_adapter(model: PreTrainedModel, name: str | None) -> None:
    """Activates an adapter of a model, or disables all of them if `name` is `None`."""
    if not has_adapter(model):
        return
    from peft.tuners.tuners_utils import BaseTunerLayer

    layer = next(module for module in model.modules() if isinstance(module, BaseTunerLayer))
    if name is None and not layer.disable_adapters:
        model.disable_adapters()
    elif name is not None and (layer.disable_adapters or layer.active_adapters != [name]):
        model.enable_adapters()
        model.set_adapter(name)


# Abilities that settings need of a model, as functions of the model and the value of the setting.
ABILITIES: dict[str, Callable[[PreTrainedModel, Any], bool]] = {
    "is_native": lambda model, value: model.is_native,
    "takes_cache": lambda model, value: model.is_native or model.has_encoder,
    "has_mask_token": lambda model, value: model.noise == "mask",
    "has_random_noise": lambda model, value: model.noise == "uniform",
    "sees_all": lambda model, value: model.attention == "full",
    "has_blocks": lambda model, value: model.attention != "full",
    "has_open_past": lambda model, value: model.attention != "causal_past",
    "moves_blocks": lambda model, value: (
        (model.takes_visibility or model.has_encoder) and getattr(model.config, "expert_capacity", None) is None
    ),
    "takes_blocks": lambda model, value: (
        model.attention == "full" or ABILITIES["moves_blocks"](model, value) or value == model.block_length
    ),
    "hides_padding": lambda model, value: model.hides_padding,
    "fits_attention": lambda model, value: (model.attention == "full") == (value != "block"),
    "has_room": lambda model, value: model.attention == "full" or value <= (longest_sequence(model) or value),
    "keeps_activations": lambda model, value: not (model.training and model.is_activation_checkpointing),
    "takes_embeddings": lambda model, value: "inputs_embeds" in inspect.signature(model.forward).parameters,
    "takes_visibility": lambda model, value: (
        model.takes_visibility and "flash" not in str(model.config.get_text_config()._attn_implementation)
    ),
}


def check(config: Config, model: PreTrainedModel | None = None) -> None:
    """Raises a [`SettingError`] if settings of a resolved configuration contradict one another or the model."""
    for setting in SETTINGS.values():
        if config.is_on(setting.name):
            _check_others(setting, config)
            if model is not None:
                _check_model(setting, config, model)
    if config.min_new_tokens > config.max_new_tokens:
        rule = f"must be at most `max_new_tokens={config.max_new_tokens}`"
        raise SettingError("min_new_tokens", config.min_new_tokens, rule, "Raise `max_new_tokens`.")
    if model is None:
        return
    of_class = type(model).__name__
    for name in ("delete_token_id", "split_token_id"):
        token = getattr(model.config, name, None)
        if token is not None and token not in config.suppress_tokens:
            rule = f"lacks {token}, the `{name}` of {of_class}: decoding cannot delete or insert tokens"
            raise SettingError("suppress_tokens", config.suppress_tokens, rule, f"Set `suppress_tokens=[{token}]`.")
    if model.noise == "uniform" and config.block_origin == "sequence":
        rule = f"is not for {of_class}, whose canvases begin after the prompt"
        raise SettingError("block_origin", "sequence", rule, "Set `block_origin='answer'`, or leave it out.")
    if model.attention != "full" and config.is_infilling:
        rule = f"fills in mask tokens, but {of_class} does not see later blocks"
        raise SettingError("max_new_tokens", 0, rule, "Append new tokens, or use a model with full attention.")


def _check_others(setting: Setting, config: Config) -> None:
    name, value = setting.name, getattr(config, setting.name)
    for need in setting.needs:
        candidates = settings_called(need)
        if not any(map(config.is_on, candidates)):
            choice = " or ".join(f"`{candidate}`" for candidate in candidates)
            rule = f"needs {_spoken(need)}"
            raise SettingError(name, value, rule, f"Set {choice}, or {setting.way_without}.")
    for rival in setting.not_with:
        for other in settings_called(rival):
            if other != name and config.is_on(other):
                rule = f"does not go with `{other}={getattr(config, other)!r}`"
                raise SettingError(name, value, rule, f"{SETTINGS[other].way_without}, or {setting.way_without}.")


def _spoken(need: str) -> str:
    if need not in SETTINGS:
        return f"a commit rule with a {need}"
    off = SETTINGS[need].off
    return f"`{need}`" if off is None else f"`{need}` other than {off!r}"


def _check_model(setting: Setting, config: Config, model: PreTrainedModel) -> None:
    value, name = getattr(config, setting.name), type(model).__name__
    for ability, reason in setting.model.items():
        if not ABILITIES[ability](model, value):
            rule = reason.format(model=name, longest=longest_sequence(model))
            raise SettingError(setting.name, value, rule, f"{setting.way_without}.")
