# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""How a request is decoded: the model's recipe, then the arguments of the run, then the task's `generation_kwargs`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..generation.configuration import DiffusionGenerationConfig, resolve
from ..generation.settings import SETTINGS


# The harness's words for the longest answer, the first that is given counts.
_LIMITS = ("max_gen_toks", "max_tokens", "max_completion_tokens")
# Settings that leave nothing to the recipe of a model but its special tokens and its commit rule.
_PLAIN = {name: setting.default for name, setting in SETTINGS.items() if setting.default is not None} | {
    "do_sample": False,
    "use_cache": False,
}


@dataclass(frozen=True)
class RequestSettings:
    """How a request is decoded.

    Args:
        recipe ([`DiffusionGenerationConfig`]): every setting, special tokens included.
        until (`tuple[str, ...]`): strings that end the answer and are not part of it.
        max_tokens (`int`): the answer is cut after so many tokens. The canvas can be longer, up to a whole block.
    """

    recipe: DiffusionGenerationConfig
    until: tuple[str, ...]
    max_tokens: int

    @property
    def draws(self) -> bool:
        """Whether tokens are drawn, so that a repeated request gets another answer."""
        return bool(self.recipe.temperature)

    def fingerprint(self) -> str:
        """All that the answer depends on, as text."""
        settings = self.recipe.settings()
        settings = {name: settings[name] for name in settings if SETTINGS[name].kind not in ("output", "compile")}
        return json.dumps([settings, self.until, self.max_tokens], sort_keys=True)


def read_gen_kwargs(
    gen_kwargs: Mapping[str, Any],
    defaults: Mapping[str, Any],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    uses_recipe: bool = True,
) -> RequestSettings:
    """Merges the settings of a request.

    `max_new_tokens` is the canvas as in `generate`. Where only `max_gen_toks` is given, as most tasks do, the canvas
    has as many whole blocks as that takes.

    Args:
        gen_kwargs (`Mapping`): of the task and of the command line; they win.
        defaults (`Mapping`): settings of [`DiffusionGenerationConfig`] for all requests.
        model ([`~transformers.PreTrainedModel`]), tokenizer: whose recipe and special tokens count after these.
        uses_recipe (`bool`): `False` leaves out the recipe of the model, but for its special tokens.

    Raises:
        ValueError: for an unknown setting, or one out of range.
    """
    check_gen_kwargs(gen_kwargs)
    settings = dict(gen_kwargs)
    until = _as_list(settings.pop("until", None))
    limits = [settings.pop(name, None) for name in _LIMITS]
    limit = next((int(value) for value in limits if value is not None), None)
    given = DiffusionGenerationConfig(**({} if uses_recipe else _PLAIN)).updated(**defaults)
    own = resolve(model, given, tokenizer)
    if limit is not None and "max_new_tokens" not in settings:
        block_length = settings.get("block_length") or own.block_length
        settings["max_new_tokens"] = -(-limit // block_length) * block_length
    else:
        limit = None
    if not uses_recipe and not (given.commit_rule() or DiffusionGenerationConfig(**settings).commit_rule()):
        settings["denoising_steps"] = settings.get("max_new_tokens") or own.max_new_tokens
    recipe = resolve(model, given, tokenizer, **settings)
    until += _as_list(recipe.stop_strings)
    # Text is decoded without special tokens, so strings that are one would not be found in it.
    special = {token.content: token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    ends = [special[text] for text in until if text in special]
    recipe = recipe.updated(stop_strings=[], eos_token_id=list(dict.fromkeys(recipe.eos_token_ids + ends)))
    return RequestSettings(recipe, tuple(dict.fromkeys(until)), limit or recipe.max_new_tokens)


def check_gen_kwargs(gen_kwargs: Mapping[str, Any]) -> None:
    """Refuses settings that are unknown, out of range, or contradict one another.

    Raises:
        ValueError: naming them.
    """
    until = gen_kwargs.get("until")
    if not isinstance(until, str | list | None) or not all(isinstance(text, str) for text in until or ""):
        raise ValueError(f"`until` must be a string or a list of strings, got {until!r}.")
    for name in _LIMITS:
        value = gen_kwargs.get(name)
        if value is not None and not (isinstance(value, int | float) and value >= 1):
            raise ValueError(f"`{name}` must be a positive integer, got {value!r}.")
    words = ("until", *_LIMITS)
    DiffusionGenerationConfig(**{name: value for name, value in gen_kwargs.items() if name not in words})


def _as_list(strings: str | list[str] | None) -> list[str]:
    """Empty strings end nothing: some tasks have them for tokenizers without an end token."""
    return [text for text in ([strings] if isinstance(strings, str) else strings or []) if text]
