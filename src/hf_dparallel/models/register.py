# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Registration of a model family with the Auto classes of transformers."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)


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


__all__ = ["register_family"]
