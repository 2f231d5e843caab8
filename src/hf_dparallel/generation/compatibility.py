# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Which settings a model can be decoded with."""

import inspect

from transformers import PreTrainedModel

from .configuration import DiffusionGenerationConfig
from .inputs import longest_sequence


def check_supported(model: PreTrainedModel, config: DiffusionGenerationConfig) -> None:
    """Checks that the model can do what the settings ask for.

    Raises:
        ValueError: if a cache or compilation is asked for, and the model is not one of this package, or is trained
            with activation checkpointing; if tokens are to be verified, and the model or its attention takes no mask
            of four dimensions; if they are to be mixed, and the model takes no embeddings; and for what makes no
            sense with its attention.
    """
    check_attention(model, config)
    attention = str(model.config.get_text_config()._attn_implementation)
    if config.revocation_threshold and ("flash" in attention or not model.takes_visibility):
        raise ValueError(
            f"`revocation_threshold={config.revocation_threshold}` hides tokens from some places of a pass, by a mask "
            f"of four dimensions and by position ids, which {type(model).__name__} with {attention!r} attention does "
            'not take. Load the model with `attn_implementation="sdpa"`, or leave it out.'
        )
    if config.is_soft and "inputs_embeds" not in inspect.signature(model.forward).parameters:
        raise ValueError(
            f"`soft_threshold={config.soft_threshold}` feeds mixtures of embeddings, and {type(model).__name__} takes "
            "no `inputs_embeds`. Use another commit rule, such as `confidence_threshold`."
        )
    if not model._supports_window_cache and (config.cache_implementation or config.compiles):
        name = "cache_implementation" if config.cache_implementation else "compile_config"
        raise ValueError(
            f"`{name}={getattr(config, name)!r}` needs a model of this package (LLaDA, Dream, SDAR, LLaDA2), and this "
            f"is a {type(model).__name__}. Leave it out."
        )
    if config.cache_implementation and model.training and model.is_activation_checkpointing:
        raise ValueError(
            f"`cache_implementation={config.cache_implementation!r}` needs `model.eval()`: in training, activation "
            "checkpointing (gradient checkpointing) drops the keys and values that are kept."
        )


def check_attention(model: PreTrainedModel, config: DiffusionGenerationConfig) -> None:
    """Checks the settings that make sense for one kind of attention only.

    Raises:
        ValueError: for a cache of the other kind, for infilling with a model that cannot see what follows, and for
            blocks that are longer than any sequence.
    """
    name, cache = type(model).__name__, config.cache_implementation
    if cache == "block" and not model.is_block_causal:
        raise ValueError(
            f"`cache_implementation='block'` is for block-causal models (SDAR, LLaDA2): in {name}, decided tokens "
            'see all later ones, and their keys and values change with them. Set "prefix" or "dual", which are '
            "approximations, or none."
        )
    if not model.is_block_causal:
        return
    if cache in ("prefix", "dual"):
        raise ValueError(
            f"`cache_implementation={cache!r}` approximates keys and values that later tokens change. In {name}, "
            'which is block-causal, they change nothing, and the default, "block", is exact. Leave it out.'
        )
    longest = longest_sequence(model)
    if longest is not None and config.block_length > longest:
        raise ValueError(
            f"`block_length={config.block_length}` is more than the {longest} tokens that the model was trained for, "
            f"and {name}, which is block-causal, decodes whole blocks. Leave it out: the model's own is "
            f"{model.config.block_length}."
        )
    if cache == "block" and config.cache_refresh_interval is not None:
        raise ValueError(
            f"`cache_refresh_interval={config.cache_refresh_interval}` makes an approximation better, and the block "
            "cache is exact. Leave it out."
        )
    if config.suffix_length is not None:
        raise ValueError(
            f"`suffix_length={config.suffix_length}` leaves out masks behind the open blocks, and {name} is "
            "block-causal: it computes none of them anyway. Leave it out."
        )
    if config.revocation_threshold:
        raise ValueError(
            f"`revocation_threshold={config.revocation_threshold}` verifies tokens by a second copy of their block, "
            f"which {name}, a block-causal model, has no place for. Leave it out."
        )
    if not config.max_new_tokens:
        raise ValueError(
            f"`max_new_tokens=0` fills in mask tokens between others, and {name} is block-causal: it sees nothing of "
            "the blocks behind them that the tokens have to fit to. Append new tokens, or use LLaDA or Dream."
        )
