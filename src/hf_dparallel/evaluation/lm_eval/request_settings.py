# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Merges the settings of a request: the model's recipe, the arguments of the run, the task's `generation_kwargs`."""

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_dparallel_rules.settings import Setting

from ...generation.configuration import DiffusionGenerationConfig, resolve


# lm-eval's names for the longest answer, which is the canvas. The first one given counts.
_LIMITS = ("max_gen_toks", "max_tokens", "max_completion_tokens")


def read_gen_kwargs(
    gen_kwargs: Mapping[str, Any],
    defaults: Mapping[str, Any],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[DiffusionGenerationConfig, list[str]]:
    """Returns the resolved settings of a request and the strings that end its answer.

    `max_new_tokens` is the canvas as in `generate`. Where only `max_gen_toks` is given, as most tasks do, that is.
    Raises a `ValueError` for settings that are unknown, out of range, or contradict one another.
    """
    settings = dict(gen_kwargs)
    until = settings.pop("until", None) or []
    until = [until] if isinstance(until, str) else until
    if not isinstance(until, list) or not all(isinstance(text, str) for text in until):
        raise ValueError(f"`until` must be a string or a list of strings, got {until!r}.")
    limits = [Setting(name, "length", int, "", minimum=1).read(settings.pop(name, None)) for name in _LIMITS]
    if settings.get("max_new_tokens") is None:
        settings["max_new_tokens"] = next((limit for limit in limits if limit is not None), None)
    config = resolve(model, DiffusionGenerationConfig(**defaults), tokenizer, **settings)
    # Some tasks have empty strings, for tokenizers without an end token.
    until = [text for text in dict.fromkeys([*until, *config.stop_strings]) if text]
    # Text is decoded without special tokens, so strings that are one would not be found in it.
    special = {token.content: token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    ends = [special[text] for text in until if text in special]
    return config.updated(stop_strings=[], eos_token_id=list(dict.fromkeys(config.eos_token_ids + ends))), until
