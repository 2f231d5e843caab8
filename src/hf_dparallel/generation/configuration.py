# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The configuration of decoding, and how the settings of caller, adapter and model are merged."""

import copy
import textwrap
from collections.abc import Iterable
from contextlib import suppress
from inspect import cleandoc
from typing import Any

from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.diffusion_gemma import DiffusionGemmaGenerationConfig
from transformers.utils import logging

from hf_dparallel_rules.commit_rules import check_rule
from hf_dparallel_rules.settings import (
    KINDS,
    SETTINGS,
    THRESHOLD,
    SettingError,
    name_of_ours,
    settings_called,
    settings_of,
    what_is_meant,
)

from .compatibility import ABILITIES, check, has_adapter


logger = logging.get_logger(__name__)

# Values at which settings of left-to-right decoding do nothing: callers that serve all models pass them.
_NEUTRAL = {
    name: value for name, value in GenerationConfig._get_default_generation_params().items() if name != "max_length"
}


class DiffusionGenerationConfig(GenerationConfig):
    r"""
    Settings of [`DiffusionGenerationMixin.generate`]. Saved as `generation_config.json` and read back from it, so
    that a checkpoint or adapter carries its decoding recipe.

    A setting that is `None` is unset: it is then taken from the active adapter's recipe, from the model's recipe,
    or from the default named here (see [`resolve`]).

    Args:
        {settings}

    Raises:
        ValueError: for a setting that is unknown, out of range, or has no meaning in diffusion decoding.

    ```python
    >>> from hf_dparallel import DiffusionGenerationConfig

    >>> recipe = DiffusionGenerationConfig(max_new_tokens=256, block_length=32, entropy_threshold=0.5)
    ```
    """

    def __init__(self, **kwargs):
        _check_known(kwargs)
        values = {name: setting.read(kwargs.get(name)) for name, setting in SETTINGS.items()}
        # Set first, because the base class checks everything at its end.
        for name, value in values.items():
            setattr(self, name, value)
        super().__init__(**kwargs | values)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs):
        """Reads a saved config. Leaves out the settings of other samplers, and logs their names.

        Keyword arguments override what was saved; a commit rule among them replaces the saved one.
        """
        config_dict = _of_transformers(config_dict)
        saved = {name: value for name, value in config_dict.items() if name in SETTINGS and value is not None}
        unused = sorted(name for name in config_dict.keys() - saved.keys() if config_dict[name] is not None)
        unused = [name for name in unused if name[0] != "_" and name != "transformers_version"]
        if unused:
            logger.info(f"Settings of another sampler are not used by diffusion decoding: {', '.join(unused)}.")
        if config_dict.get("_from_model_config"):
            # The config of a model sets it for training, not for decoding.
            saved.pop("use_cache", None)
        return super().from_dict(_without_contradictions(saved, kwargs), **kwargs)

    @classmethod
    def from_generation_config(cls, config: GenerationConfig) -> "DiffusionGenerationConfig":
        """Converts a config object of the caller. Unlike in a file, an unknown setting is an error."""
        if not isinstance(config, GenerationConfig):
            remedy = "Pass `DiffusionGenerationConfig(**settings)`."
            raise SettingError("generation_config", config, "must be a `GenerationConfig`", remedy)
        if isinstance(config, cls):
            config.validate()
            return config
        settings = _of_transformers(config.to_dict())
        left_out = {name for name in settings if name.startswith("_") or name == "transformers_version"}
        return cls(**{name: value for name, value in settings.items() if name not in left_out})

    @classmethod
    def from_model_config(cls, model_config):
        """Returns an empty config: a model's config holds no decoding settings."""
        return cls()

    def validate(self, strict: bool = False, user_set_attributes: set[str] | None = None) -> None:
        """Raises a [`SettingError`] for errors that do not depend on the model or the prompts."""
        _check_known(vars(self))
        for name, value in vars(self).items():
            is_neutral = value is None or value is False or value == _NEUTRAL.get(name)
            if name in SETTINGS:
                SETTINGS[name].read(value)
            elif name[0] != "_" and name != "transformers_version" and not is_neutral:
                raise SettingError(name, value, "has no meaning in diffusion decoding", name_of_ours(name, value))
        on = [name for name in settings_of("rule") if self.is_on(name)]
        if len(on) > 1:
            first, second, *_ = on
            rule = f"and `{second}={getattr(self, second)}` are two commit rules"
            raise SettingError(first, getattr(self, first), rule, "At most one can be set: remove one of them.")
        if self.do_sample and self.temperature == 0:
            raise SettingError("do_sample", True, "samples tokens and `temperature=0` does not", "Remove one of them.")
        if self.use_cache is False and self.cache_implementation is not None:
            rule = f"and `cache_implementation={self.cache_implementation!r}` contradict each other"
            raise SettingError("use_cache", False, rule, "Remove one of them.")
        check_rule(self)

    def settings(self) -> dict[str, Any]:
        """Returns the settings that are set, by name."""
        # A rule that was registered later is no attribute of this config.
        return {name: getattr(self, name) for name in SETTINGS if getattr(self, name, None) is not None}

    def is_on(self, name: str) -> bool:
        """Returns whether a setting exists, is set, and is not at its `off` value."""
        return name in SETTINGS and SETTINGS[name].is_on(getattr(self, name, None))

    def non_defaults(self) -> dict[str, Any]:
        """Returns the settings that change answers and differ from their defaults."""
        changed = {name: value for name, value in self.settings().items() if value != SETTINGS[name].default}
        return {name: value for name, value in changed.items() if SETTINGS[name].changes_answer}

    def commit_rule(self) -> str | None:
        """Returns the name of the commit rule that is set, or `None`."""
        return next((name for name in settings_of("rule") if name in self.settings()), None)

    def updated(self, **settings) -> "DiffusionGenerationConfig":
        """Returns a copy with these settings; `None` unsets one.

        Leaves out old settings that contradict new ones: another commit rule, sampling or not sampling, a cache.
        """
        kept = {name: value for name, value in self.settings().items() if name not in settings}
        new = {name: value for name, value in settings.items() if value is not None}
        return type(self)(**_without_contradictions(kept, new), **new)

    def one_token_per_pass(self) -> "DiffusionGenerationConfig":
        """Returns a copy that commits the likeliest token in each pass, without an approximate cache.

        Other recipes are compared with this one. `max_new_tokens` must be set.
        """
        plain = {name: SETTINGS[name].off for name in settings_of("rule options", "blocks", "revision", "sampling")}
        plain |= dict.fromkeys(name for name in settings_of("cache") if name != "use_cache")
        if self.cache_implementation == "block":
            plain["cache_implementation"] = "block"
        else:
            plain["use_cache"] = False
        return self.updated(**plain, **one_at_a_time(self.settings()))

    def to_diff_dict(self) -> dict[str, Any]:
        """Returns the settings that differ from the defaults of [`~transformers.GenerationConfig`].

        Adds `do_sample=False` to a recipe that does not sample, because pipelines sample by default.
        """
        samples = {} if self.do_sample is not None or self.temperature else {"do_sample": False}
        return super().to_diff_dict() | samples

    def to_json_string(self, use_diff=True, ignore_metadata=False, keys_to_pop=None) -> str:
        """Returns the set settings as JSON, in transformers' names if its sampler supports all of them."""
        unset = [name for name in SETTINGS if getattr(self, name, None) is None]
        write = super().to_json_string
        with suppress(ValueError):
            write = _for_transformers(self.settings()).to_json_string
            unset.remove("confidence_threshold")
        return write(use_diff, ignore_metadata, [*(keys_to_pop or []), *unset])

    @property
    def compiles(self) -> bool:
        """Returns whether the forward pass is compiled."""
        return self.compile_config is not None and not self.disable_compile

    @property
    def revises(self) -> bool:
        """Returns whether decided tokens of the open blocks may change."""
        return any(map(self.is_on, settings_called("revision")))

    @property
    def is_infilling(self) -> bool:
        """Returns whether decoding fills in the mask tokens of the prompt, and appends none."""
        return self.max_new_tokens == 0

    @property
    def eos_token_ids(self) -> list[int]:
        """Returns the tokens that end an answer."""
        if self.eos_token_id is None:
            return []
        return list(self.eos_token_id) if isinstance(self.eos_token_id, list | tuple) else [self.eos_token_id]

    @property
    def padding_token_id(self) -> int:
        """Returns the token that fills up an answer after its end."""
        return self.pad_token_id if self.pad_token_id is not None else (self.eos_token_ids or [0])[0]

    @property
    def undecided_token_id(self) -> int:
        """Returns the token of undecided places: the mask token, or padding for a model without one."""
        return self.padding_token_id if self.mask_token_id is None else self.mask_token_id


def resolve(
    model: PreTrainedModel,
    given: GenerationConfig | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    **kwargs,
) -> DiffusionGenerationConfig:
    r"""
    Returns the complete configuration of a call: every setting that decoding needs, special tokens included.

    Each setting has the value of the first of these that sets it: `kwargs`, `given`, the recipe of the active adapter,
    the recipe of the model (`model.generation_config`), the default. A setting also replaces lower-priority settings
    that conflict with it: another commit rule, sampling, or a cache. A resolved configuration resolves to itself.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The model, with [`~DiffusionGenerationMixin.generate`].
        given ([`~transformers.GenerationConfig`], *optional*):
            A configuration of the caller.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`], *optional*):
            For special tokens that no configuration has.
        kwargs:
            Settings of the caller.

    Raises:
        ValueError: for a setting that is unknown or out of range, settings that contradict one another, or if no mask
            token is known.
    """
    values = _merged(DiffusionGenerationConfig(**kwargs), given, *model.recipes())
    names = ["eos_token_id", "pad_token_id", *(["mask_token_id"] if model.noise == "mask" else [])]
    for name in names:
        if name not in values:
            values[name] = special_token_id(name, model.config.get_text_config(), tokenizer)
    if model.noise == "mask" and values["mask_token_id"] is None:
        remedy = "Pass `mask_token_id=` to `generate`, or set `model.generation_config.mask_token_id`."
        raise SettingError("mask_token_id", None, "must be set by a config or the tokenizer", remedy)
    samples = _samples(values)
    values |= {"do_sample": bool(samples), "temperature": values.get("temperature", 1.0) if samples else 0.0}
    defaults = {name: setting.default for name, setting in SETTINGS.items() if setting.default is not None}
    if model.attention != "full":
        defaults |= {"block_length": model.block_length, "block_origin": model.block_origin}
        # Activation checkpointing drops keys and values, so there is no cache then.
        keeps_cache = not (model.training and model.is_activation_checkpointing)
        if values.get("use_cache") is not False and keeps_cache and ABILITIES["takes_cache"](model, None):
            defaults["cache_implementation"] = "block"
    values = copy.deepcopy(defaults) | values
    if "cache_implementation" in values:
        del values["use_cache"]
    if values.get("disable_compile"):
        values.pop("compile_config", None)
    if not values.keys() & set(settings_of("rule")):
        values |= one_at_a_time(values)
        if getattr(model, "peft_config", None) and not has_adapter(model):
            logger.warning_once(
                "`PeftModel` ignores the recipe of an adapter, so each pass commits one token. Load the adapter with "
                "`model.load_adapter(name)`, which reads it, or set a commit rule such as `entropy_threshold`."
            )
    config = DiffusionGenerationConfig(**values)
    check(config)
    if not config.temperature and (config.is_on("top_k") or config.is_on("top_p")):
        logger.warning_once("`top_k` and `top_p` change nothing at temperature 0. Set `temperature` to sample tokens.")
    return config


def one_at_a_time(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the commit rule (a setting and its value) that commits one token in each pass with these settings."""
    schedules = {name: setting.schedule_of for name, setting in SETTINGS.items() if setting.schedule_of}
    return {name: settings[length] for name, length in schedules.items() if settings.get(length)}


def recipe_of(model: PreTrainedModel) -> DiffusionGenerationConfig:
    """Returns the recipe of the active adapter, completed by the recipe of the model."""
    return DiffusionGenerationConfig(**_merged(*model.recipes()))


def _merged(*layers: GenerationConfig | None) -> dict[str, Any]:
    """Merges the settings of all layers. The first layer that sets a setting wins."""
    values: dict[str, Any] = {}
    for layer in layers:
        if layer is not None:
            settings = DiffusionGenerationConfig.from_generation_config(layer).settings()
            if settings.get("use_cache"):
                del settings["use_cache"]  # callers of all models pass it; only `False` changes something
            values |= _without_contradictions(settings, values)
    return values


def _without_contradictions(settings: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings that `above` neither sets nor contradicts."""
    dropped = set(above)
    if above.keys() & set(settings_of("rule")):
        dropped |= set(settings_of("rule"))
        if not above.keys() & set(settings_called(THRESHOLD)):
            dropped |= {name for name, setting in SETTINGS.items() if THRESHOLD in setting.needs}
    if _samples(above) is not None and _samples(settings) not in (None, _samples(above)):
        dropped |= {"do_sample", "temperature"}
    if above.get("use_cache") is False or above.get("cache_implementation") is not None:
        dropped |= set(settings_of("cache"))
    return {name: value for name, value in settings.items() if name not in dropped}


def _samples(settings: dict[str, Any]) -> bool | None:
    """Returns whether tokens are sampled, or `None` if no setting decides it."""
    do_sample, temperature = settings.get("do_sample"), settings.get("temperature")
    return do_sample if do_sample is not None else temperature and temperature > 0


def _of_transformers(settings: dict[str, Any]) -> dict[str, Any]:
    """Renames the settings of transformers' sampler, whose `confidence_threshold` is an entropy bound."""
    if "sampler_config" not in settings:
        return settings
    sampler, stop_entropy = settings["sampler_config"], settings.get("confidence_threshold")
    sampler = sampler if isinstance(sampler, dict) or sampler is None else vars(sampler)
    renamed = {"entropy_bound": (sampler or {}).get("entropy_bound"), "stop_entropy": stop_entropy}
    kept = {name: settings[name] for name in settings.keys() - {"sampler_config", "confidence_threshold"}}
    return {"do_sample": True} | kept | renamed


def _for_transformers(settings: dict[str, Any]) -> DiffusionGemmaGenerationConfig:
    """Returns the same settings for transformers, or raises a `ValueError` if its sampler cannot follow them."""
    is_drawn = settings.get("do_sample") is not False and "max_denoising_steps" in settings
    if not is_drawn or "confidence_threshold" in settings:
        raise ValueError("The sampler of transformers always draws, denoises, and accepts tokens by their entropy.")
    kept = {name: settings[name] for name in settings.keys() - {"entropy_bound", "stop_entropy", "do_sample"}}
    bound = settings.get("entropy_bound")
    sampler = None if bound is None else {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": bound}
    stop_entropy = settings.get("stop_entropy")
    return DiffusionGemmaGenerationConfig(sampler_config=sampler, confidence_threshold=stop_entropy, **kept)


def special_token_id(name: str, *sources: Any) -> Any:
    """Returns the attribute `name` of the first configuration or tokenizer that has it, or `None`."""
    values = (getattr(source, name, None) for source in sources)
    return next((value for value in values if value is not None), None)


def _check_known(settings: Iterable[str]) -> None:
    unknown = sorted(name or "''" for name in {*settings} - {*_KNOWN, *SETTINGS} if not name.startswith("_"))
    if unknown:
        remedies = list(filter(None, map(what_is_meant, unknown))) or [
            f"Diffusion decoding knows {', '.join(SETTINGS)}."
        ]
        raise ValueError(" ".join([f"Unknown generation setting(s): {', '.join(unknown)}.", *remedies]))


def _describe_arguments() -> str:
    """Returns the settings in the form of a docstring, by kind."""
    wrapper = textwrap.TextWrapper(119, initial_indent=" " * 8, subsequent_indent=" " * 8, break_long_words=False)
    lines = []
    for setting in (SETTINGS[name] for kind in KINDS for name in settings_of(kind)):
        default = f", defaults to `{setting.default!r}`" if setting.default is not None else ""
        text = f"{setting.help} ({setting.rule[0].upper()}{setting.rule[1:]}.) {setting.source}".strip()
        lines += [f"    {setting.name} (`{setting.type.__name__}`, *optional*{default}):", *wrapper.wrap(text)]
    return "\n".join(lines)


_KNOWN = frozenset(vars(GenerationConfig()))
if DiffusionGenerationConfig.__doc__:  # not under `python -OO`
    # From Python 3.13 on, docstrings have no indentation.
    _doc = cleandoc(DiffusionGenerationConfig.__doc__).replace("    {settings}", _describe_arguments())
    DiffusionGenerationConfig.__doc__ = _doc
