# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The configuration of decoding, and how the settings of caller, adapter and model are merged."""

import copy
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from inspect import cleandoc, formatannotation
from typing import Any

from transformers import CompileConfig, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from hf_dparallel_rules.settings import GROUPS, OUR_NAMES, SETTINGS, Setting, SettingError, settings_of, suggest

from .adapters import check_virtual_tokens, has_adapter
from .compatibility import NEED_THRESHOLD


logger = logging.get_logger(__name__)

# Words of transformers that [`normalise`] reads, and the one that it writes into each file.
_WORDS = {name: Setting(name, "words", bool, "") for name in ("do_sample", "use_cache")}
_VERSION = "transformers_version"
# The setting that the settings of all priorities make together.
_CHAT = "chat_template_kwargs"
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

    Words of transformers count as these: `do_sample=False` is `temperature=0`, `do_sample=True` a temperature of 1
    where none is set, and `use_cache=False` is `cache_implementation="none"` (`True` changes nothing).

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
        self.__dict__.update(values)
        super().__init__(**kwargs | values)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs):
        """Reads a saved config. Leaves out the settings of other samplers, and logs their names.

        Keyword arguments override what was saved; a commit rule among them replaces the saved one.
        """
        if config_dict.get("_from_model_config"):
            # The config of a model sets it for training, not for decoding.
            config_dict = config_dict | {"use_cache": None}

        others = [name for name in config_dict if name not in {*SETTINGS, *_WORDS, _VERSION}]
        unused = sorted(name for name in others if name[0] != "_" and config_dict[name] is not None)
        if unused:
            logger.info(f"Settings of another sampler are not used by diffusion decoding: {', '.join(unused)}.")

        return super().from_dict(_without_replaced(normalise(config_dict), normalise(kwargs)), **kwargs)

    @classmethod
    def from_generation_config(cls, config: GenerationConfig) -> "DiffusionGenerationConfig":
        """Converts a config object of the caller. Unlike in a file, an unknown setting is an error."""
        if not isinstance(config, GenerationConfig):
            raise SettingError(
                "generation_config",
                config,
                rule="must be a `GenerationConfig`",
                remedy="Pass `DiffusionGenerationConfig(**settings)`.",
            )

        if isinstance(config, cls):
            config.validate()
            return config

        settings = config.to_dict()
        return cls(**{name: value for name, value in settings.items() if name[:1] != "_" and name != _VERSION})

    @classmethod
    def from_model_config(cls, model_config):
        """Returns an empty config: a model's config holds no decoding settings."""
        return cls()

    def validate(self, strict: bool = False, user_set_attributes: set[str] | None = None) -> None:
        """Raises a [`SettingError`] for settings that are unknown, out of range, or two words about one thing."""
        _check_known(vars(self))
        settings = self.settings()
        for name, value in vars(self).items():
            is_known = name in {*settings, *_WORDS, _VERSION} or name[0] == "_"
            is_neutral = value is None or value is False or value == _NEUTRAL.get(name)
            if not is_known and not is_neutral:
                raise SettingError(
                    name,
                    value,
                    rule="has no meaning in diffusion decoding",
                    remedy=suggest(name) if name in OUR_NAMES else f"Remove `{name}`.",
                )

        if not isinstance(self.compile_config, CompileConfig | None):
            raise SettingError(
                "compile_config", self.compile_config, rule=f"must be {SETTINGS['compile_config'].rule}"
            )

        rules = [name for name in settings_of("rule") if name in settings]
        if len(rules) > 1:
            first, second, *_ = rules
            raise SettingError(
                first,
                settings[first],
                rule=f"and `{second}={settings[second]}` are two commit rules",
                remedy="At most one can be set: remove one of them.",
            )

    def settings(self) -> dict[str, Any]:
        """Returns the settings that are set, by name, with transformers' words in ours."""
        return normalise(vars(self))

    def is_on(self, name: str) -> bool:
        """Returns whether a setting exists, is set, and differs from its default."""
        return name in SETTINGS and getattr(self, name, None) not in (None, SETTINGS[name].default)

    def non_defaults(self) -> dict[str, Any]:
        """Returns the settings that change answers and differ from their defaults."""
        return {
            name: value
            for name, value in self.settings().items()
            if SETTINGS[name].changes_answer and value != SETTINGS[name].default
        }

    def commit_rule(self) -> str | None:
        """Returns the name of the commit rule that is set, or `None`."""
        return next((name for name in settings_of("rule") if getattr(self, name, None) is not None), None)

    def updated(self, **settings) -> "DiffusionGenerationConfig":
        """Returns a copy with these settings, which replace another rule or cache; `None` unsets one."""
        kept = {name: value for name, value in self.settings().items() if name not in settings}
        return type(self)(**_merged(settings, [kept]))

    def one_token_per_pass(self) -> "DiffusionGenerationConfig":
        """Returns a copy that commits the likeliest token in each pass, without an approximate cache."""
        replaced = settings_of("rule options", "blocks", "revision", "sampling", "cache")
        plain = {name: SETTINGS[name].default for name in replaced}
        plain["cache_implementation"] = "block" if self.cache_implementation == "block" else "none"
        return self.updated(**plain, denoising_steps=self.max_new_tokens or None)

    def to_diff_dict(self) -> dict[str, Any]:
        """Returns the settings that differ from the defaults of [`~transformers.GenerationConfig`]."""
        differing = super().to_diff_dict()
        if self.do_sample is None and not self.temperature:
            # Pipelines sample by default.
            differing["do_sample"] = False

        if self.cache_implementation == "none":
            # transformers does not know this value.
            del differing["cache_implementation"]
            differing["use_cache"] = False
        return differing

    def to_json_string(self, use_diff=True, ignore_metadata=False, keys_to_pop=None) -> str:
        """Returns the set settings as JSON."""
        unset = [name for name in (*SETTINGS, "do_sample") if getattr(self, name, None) is None]
        return super().to_json_string(use_diff, ignore_metadata, [*(keys_to_pop or []), *unset])

    @property
    def is_infilling(self) -> bool:
        """Returns whether decoding fills in the mask tokens of the prompt, and appends none."""
        return self.max_new_tokens == 0

    @property
    def eos_token_ids(self) -> list[int]:
        """Returns the tokens that end an answer."""
        if self.eos_token_id is None:
            return []
        if isinstance(self.eos_token_id, list | tuple):
            return list(self.eos_token_id)
        return [self.eos_token_id]

    @property
    def padding_token_id(self) -> int:
        """Returns the token that fills up an answer after its end."""
        if self.pad_token_id is not None:
            return self.pad_token_id
        return next(iter(self.eos_token_ids), 0)


def resolve(
    model: PreTrainedModel,
    given: GenerationConfig | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    **kwargs,
) -> DiffusionGenerationConfig:
    r"""
    Returns the complete configuration of a call: every setting that decoding needs, special tokens included.

    Each setting has the value of the first of these that sets it: `kwargs`, `given`, the recipe of the active adapter,
    the recipe of the model (`model.generation_config`), the default. A commit rule also replaces a rule of lower
    priority, and a cache the options of another. A setting of a recipe that contradicts `kwargs` or `given` gives way,
    which is logged. A resolved configuration resolves to itself.

    Args:
        model ([`~transformers.PreTrainedModel`]): a model with [`~DiffusionGenerationMixin.generate`].
        given ([`~transformers.GenerationConfig`], *optional*): a configuration of the caller.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`], *optional*): for tokens that no configuration has.
        kwargs: settings of the caller.

    Raises:
        ValueError: for an invalid setting, settings of the caller that contradict one another or the model, a recipe
            that contradicts the model, or if no mask token is known.
    """
    # A `PeftModel` hands methods on to its base model.
    check_virtual_tokens(getattr(model, "active_peft_config", None))

    if kwargs.get("do_sample") and kwargs.get("temperature") is None:
        # Those of recipes that do not sample by themselves, too.
        temperatures = [getattr(config, "temperature", None) for config in (given, *model.recipes())]
        kwargs["temperature"] = next(filter(None, temperatures), None)

    of_caller = _merged(kwargs, _layers(given))
    values = _merged(kwargs, _layers(given, *model.recipes()))
    config = _completed(values, model, tokenizer)
    error = _contradiction(config, model)

    while error is not None:
        name = _which_gives_way(values, of_caller, error, model, tokenizer)
        if name is None:
            raise error

        logger.warning_once(
            f"The recipe's `{name}={values[name]!r}` gives way to settings of yours: "
            f"`{error.setting}={error.value!r}` {error.rule}."
        )
        del values[name]
        config = _completed(values, model, tokenizer)
        error = _contradiction(config, model)

    return config


def _contradiction(config: DiffusionGenerationConfig, model: PreTrainedModel) -> SettingError | None:
    """Returns what the model raises for a configuration, or `None`."""
    try:
        model.check_settings(config)
    except SettingError as error:
        return error
    return None


def _which_gives_way(
    values: dict[str, Any],
    of_caller: dict[str, Any],
    error: SettingError,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
) -> str | None:
    """Returns which setting of a recipe contradicts those of the caller, or `None` if these contradict one another.

    Nothing gives way in a recipe that does not fit the model by itself.
    """
    recipe = _merged({}, _layers(*model.recipes()))
    recipe["mask_token_id"] = values.get("mask_token_id")
    if _contradiction(_completed(recipe, model, tokenizer), model) is not None:
        return None

    special_tokens = settings_of("tokens")
    of_recipe = [name for name in values if name not in of_caller and name not in special_tokens]
    if error.setting in of_recipe:
        return error.setting

    for name in of_recipe:
        others = {other: value for other, value in values.items() if other != name}
        if _contradiction(_completed(others, model, tokenizer), model) is None:
            return name

    return None


def _completed(
    values: dict[str, Any], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None
) -> DiffusionGenerationConfig:
    """Returns the configuration with these settings, and with special tokens and defaults for the others."""
    values = dict(values)
    if values.get("disable_compile"):
        values.pop("compile_config", None)

    for name in ("eos_token_id", "pad_token_id", "mask_token_id"):
        if values.get(name) is None:
            values[name] = special_token_id(name, model.config.get_text_config(), tokenizer)
    if values["mask_token_id"] is None:
        raise SettingError(
            "mask_token_id",
            None,
            rule="must be set by a config or the tokenizer",
            remedy="Pass `mask_token_id=` to `generate`, or set `model.generation_config.mask_token_id`.",
        )

    defaults = {name: setting.default for name, setting in SETTINGS.items() if setting.default is not None}
    defaults |= model.default_settings()
    values = copy.deepcopy(defaults) | values

    if not values.keys() & set(settings_of("rule")):
        values["denoising_steps"] = values["max_new_tokens"] or None  # one token in each pass
        if getattr(model, "peft_config", None) and not has_adapter(model):
            logger.warning_once(
                "`PeftModel` ignores the recipe of an adapter, so each pass commits one token. Load the adapter with "
                "`model.load_adapter(name)`, which reads it, or set a commit rule such as `entropy_threshold`."
            )

    config = DiffusionGenerationConfig(**values)

    # Words of one token are tokens. An end token is no word, as in transformers.
    words = [token for (token,) in config.bad_words_ids if token not in config.eos_token_ids]
    config.suppress_tokens = list(dict.fromkeys(config.suppress_tokens + words))
    config.bad_words_ids = []
    return config


def recipe_of(model: PreTrainedModel) -> DiffusionGenerationConfig:
    """Returns the recipe of the active adapter, completed by the recipe of the model."""
    return DiffusionGenerationConfig(**_merged({}, _layers(*model.recipes())))


def normalise(settings: Mapping[str, Any], below: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Returns the settings among these that are set, checked, with `do_sample` and `use_cache` in our words.

    `do_sample=True` means the temperature that these settings or those `below` set, by default 1.
    """
    ours = {name: row.read(settings[name]) for name, row in SETTINGS.items() if settings.get(name) is not None}
    do_sample = _WORDS["do_sample"].read(settings.get("do_sample"))
    use_cache = _WORDS["use_cache"].read(settings.get("use_cache"))

    if do_sample and ours.get("temperature") == 0:
        raise SettingError(
            "do_sample", True, rule="samples tokens and `temperature=0` does not", remedy="Remove one of them."
        )
    if do_sample is False:
        ours["temperature"] = 0.0
    if do_sample and "temperature" not in ours:
        temperatures = [layer["temperature"] for layer in below if layer.get("temperature")]
        ours["temperature"] = next(iter(temperatures), 1.0)

    if use_cache is False:
        if ours.get("cache_implementation", "none") != "none":
            raise SettingError(
                "use_cache",
                False,
                rule=f"and `cache_implementation={ours['cache_implementation']!r}` contradict each other",
                remedy="Remove one of them.",
            )
        ours["cache_implementation"] = "none"

    return ours


def _layers(*configs: GenerationConfig | None) -> list[dict[str, Any]]:
    given = [config for config in configs if config is not None]
    return [DiffusionGenerationConfig.from_generation_config(config).settings() for config in given]


def _merged(given: Mapping[str, Any], layers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merges what a caller gave and the settings of all layers. The first that sets a setting wins."""
    # Its check also refuses unknown names.
    values = normalise(vars(DiffusionGenerationConfig(**given)), layers)
    of_chat = values.get(_CHAT, {})
    for layer in layers:
        values |= _without_replaced(layer, values)
        of_chat = layer.get(_CHAT, {}) | of_chat

    if of_chat:
        values[_CHAT] = of_chat
    return values


def check_chat(model: PreTrainedModel, given: Mapping[str, Any] | None) -> None:
    """Raises a [`SettingError`] if arguments of the chat template contradict those of the model's recipe."""
    recipe = recipe_of(model).chat_template_kwargs or {}
    if any(recipe.get(name, value) != value for name, value in (given or {}).items()):
        raise SettingError(
            _CHAT,
            given,
            rule=f"contradicts the recipe of the model, {recipe}",
            remedy=f"Leave it out, or load the model and set `model.generation_config.{_CHAT}`.",
        )


def _without_replaced(settings: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings that `above` neither sets nor replaces: by another rule, or by another cache."""
    replaced = set(above)
    if above.keys() & set(settings_of("rule")):
        replaced |= set(settings_of("rule"))
    if "denoising_steps" in above:
        replaced |= {name for name in NEED_THRESHOLD if settings.get(name) != SETTINGS[name].default}
    if "cache_implementation" in above:
        replaced |= set(settings_of("cache"))
    return {name: value for name, value in settings.items() if name not in replaced}


def special_token_id(name: str, *sources: Any) -> Any:
    """Returns the attribute `name` of the first configuration or tokenizer that has it, or `None`."""
    values = (getattr(source, name, None) for source in sources)
    return next((value for value in values if value is not None), None)


def _check_known(settings: Iterable[str]) -> None:
    unknown = sorted(name or "''" for name in {*settings} - {*_KNOWN, *SETTINGS} if not name.startswith("_"))
    if not unknown:
        return

    remedies = [suggest(name) for name in unknown if suggest(name)]
    if not remedies:
        remedies = [f"Diffusion decoding knows {', '.join(SETTINGS)}."]
    raise ValueError(" ".join([f"Unknown generation setting(s): {', '.join(unknown)}.", *remedies]))


def _describe_arguments() -> str:
    """Returns the settings in the form of a docstring, by group."""
    lines = []
    for setting in (SETTINGS[name] for group in GROUPS for name in settings_of(group)):
        default = f", defaults to `{setting.default!r}`" if setting.default is not None else ""
        text = f"{setting.help} ({setting.rule[0].upper()}{setting.rule[1:]}.) {setting.source}".strip()
        lines.append(f"    {setting.name} (`{formatannotation(setting.type)}`, *optional*{default}):")
        lines.append(textwrap.indent(textwrap.fill(text, 111, break_long_words=False), " " * 8))
    return "\n".join(lines)


_KNOWN = frozenset(vars(GenerationConfig()))
if DiffusionGenerationConfig.__doc__:  # not under `python -OO`
    # From Python 3.13 on, docstrings have no indentation.
    _doc = cleandoc(DiffusionGenerationConfig.__doc__).replace("    {settings}", _describe_arguments())
    DiffusionGenerationConfig.__doc__ = _doc
