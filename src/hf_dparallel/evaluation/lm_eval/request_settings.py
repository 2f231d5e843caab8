# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""How a request is decoded: the model's recipe, then the arguments of the run, then the task's `generation_kwargs`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_dparallel_rules.settings import SETTINGS, Setting

from ...generation.configuration import DiffusionGenerationConfig, resolve


# The harness's names for the answer limit, which is the canvas. The first one given counts.
_LIMITS = tuple(
    Setting(name, "length", int, "The longest answer.", minimum=1)
    for name in ("max_gen_toks", "max_tokens", "max_completion_tokens")
)
_WORDS = ("until", *(limit.name for limit in _LIMITS))


@dataclass(frozen=True)
class RequestSettings:
    """How a request is decoded: every setting, special tokens included, and the strings that end the answer."""

    resolved: DiffusionGenerationConfig
    # They are not part of the answer.
    until: tuple[str, ...]


def read_gen_kwargs(
    gen_kwargs: Mapping[str, Any],
    defaults: Mapping[str, Any],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
) -> RequestSettings:
    """Merges the settings of a request.

    `max_new_tokens` is the canvas as in `generate`. Where only `max_gen_toks` is given, as most tasks do, that is.
    """
    check_gen_kwargs(gen_kwargs)
    settings = {name: value for name, value in gen_kwargs.items() if name not in _WORDS}
    limits = [gen_kwargs[limit.name] for limit in _LIMITS if gen_kwargs.get(limit.name) is not None]
    if limits and settings.get("max_new_tokens") is None:
        settings["max_new_tokens"] = limits[0]
    resolved = resolve(model, DiffusionGenerationConfig(**defaults), tokenizer, **settings)
    until = gen_kwargs.get("until") or []
    until = [*([until] if isinstance(until, str) else until), *resolved.stop_strings]
    # Some tasks have empty strings, for tokenizers without an end token.
    until = [text for text in until if text]
    # Text is decoded without special tokens, so strings that are one would not be found in it.
    special = {token.content: token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    ends = [special[text] for text in until if text in special]
    resolved = resolved.updated(stop_strings=[], eos_token_id=list(dict.fromkeys(resolved.eos_token_ids + ends)))
    return RequestSettings(resolved, tuple(dict.fromkeys(until)))


def check_gen_kwargs(gen_kwargs: Mapping[str, Any]) -> None:
    """Refuses settings that are unknown, out of range, or contradict one another."""
    until = gen_kwargs.get("until")
    if not isinstance(until, str | list | None) or not all(isinstance(text, str) for text in until or ""):
        raise ValueError(f"`until` must be a string or a list of strings, got {until!r}.")
    for limit in _LIMITS:
        limit.read(gen_kwargs.get(limit.name))
    DiffusionGenerationConfig(**{name: value for name, value in gen_kwargs.items() if name not in _WORDS})


def without_recipe(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Adds defaults to settings with a commit rule, so that a recipe counts only for its special tokens."""
    defaults = {name: setting.default for name, setting in SETTINGS.items() if setting.default is not None}
    return DiffusionGenerationConfig(**defaults).updated(**settings).settings()
