# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Checks settings against one another and against the model."""

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

from transformers import PreTrainedModel

from hf_dparallel_rules.settings import SETTINGS, SettingError


# Settings that need a commit rule with a threshold: any but `denoising_steps`.
NEED_THRESHOLD = ("max_active_blocks", "editing_threshold", "revocation_threshold")
# The ways to revise decided tokens of the open blocks, by their settings.
REVISIONS = ("revocation_threshold", "editing_threshold", "soft_threshold")


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


def moves_blocks(model: PreTrainedModel) -> bool:
    """Returns whether a block-causal model can count blocks of another length, or from another column."""
    return getattr(model.config, "expert_capacity", None) is None


def check(config: Any, model: PreTrainedModel) -> None:
    """Raises a [`SettingError`] if settings of a resolved configuration contradict one another or the model."""

    def refuse(name: str, rule: str, remedy: str = "Leave it out.") -> NoReturn:
        raise SettingError(name, getattr(config, name), rule=rule, remedy=remedy)

    _check_together(config, refuse)
    _check_model(config, model, refuse)


def _check_together(config: Any, refuse: Callable[..., NoReturn]) -> None:
    length, block_length, rule = config.max_new_tokens, config.block_length, config.commit_rule()
    if length == 0 and rule == "denoising_steps":
        refuse("denoising_steps", "needs `max_new_tokens` other than 0", "Use a commit rule with a threshold.")
    num_blocks = -(-length // block_length)
    if rule == "denoising_steps" and not num_blocks <= config.denoising_steps <= length:
        refuse(
            "denoising_steps",
            f"must be at least {num_blocks}, the number of blocks of {block_length}, and at most "
            f"`max_new_tokens={length}`",
            f"Use denoising_steps={min(max(config.denoising_steps, num_blocks), length)}. (A recipe counts where you "
            "say nothing.)",
        )
    for name in NEED_THRESHOLD:
        if config.is_on(name) and rule in (None, "denoising_steps"):
            remedy = f"Set one such as `entropy_threshold`, or `{name}={SETTINGS[name].default}`."
            refuse(name, "needs a commit rule with a threshold", remedy)
    revising = [name for name in REVISIONS if config.is_on(name)]
    if len(revising) > 1:
        first, second, *_ = revising
        refuse(second, f"does not go with `{first}={getattr(config, first)!r}`", "Leave one of the two out.")
    for name in (*revising, "suffix_length", "cache_implementation"):
        if config.is_on(name) and config.compile_config is not None:
            refuse(name, "does not go with `compile_config`", f"Set `{name}={SETTINGS[name].default!r}`.")
    if config.stop_strings and length == 0:
        refuse("stop_strings", "needs `max_new_tokens` other than 0", "Leave it out: masks are filled in any order.")
    if config.cache_refresh_interval is not None and config.cache_implementation not in ("prefix", "dual"):
        refuse("cache_refresh_interval", 'needs the cache "prefix" or "dual", which approximate')


def _check_model(config: Any, model: PreTrainedModel, refuse: Callable[..., NoReturn]) -> None:
    of_class = type(model).__name__
    sees_all = model.attention == "full"
    if config.is_infilling and not sees_all:
        rule = f"fills in mask tokens, but {of_class} does not see later blocks"
        refuse("max_new_tokens", rule, "Append new tokens, or use a model with full attention.")
    if not sees_all and config.block_length != model.config.block_length and not moves_blocks(model):
        refuse("block_length", f"is not that of {of_class}, which chooses experts for its blocks")
    if config.block_origin == "answer" and sees_all:
        refuse(
            "block_origin", f"is for models whose attention has blocks: in {of_class} they follow the prompt anyway"
        )
    if config.block_origin == "answer" and not moves_blocks(model):
        refuse("block_origin", f"would move the blocks that {of_class} chooses experts for")
    if config.exact and model.attention != "causal_past":
        rule = f"verifies tokens by causal logits, which {of_class} with its {model.attention} attention has not"
        refuse("exact", rule, 'Leave it out, or use a model of `convert_to_diffusion(..., attention="causal_past")`.')
    for name in REVISIONS:
        if config.is_on(name) and (config.exact or model.is_autoregressive):
            refuse(name, f"revises tokens of a block, and {of_class} decodes without blocks")
    if config.exact and config.denoising_steps not in (None, config.max_new_tokens):
        refuse("denoising_steps", "does not go with `exact`", "Use a threshold, such as `confidence_threshold`.")
    if config.max_active_blocks > 1 and model.attention == "causal_past":
        refuse("max_active_blocks", f"opens a block after one that is not decided, which {of_class} does not see")
    if config.is_on("soft_threshold") and "inputs_embeds" not in inspect.signature(model.forward).parameters:
        refuse("soft_threshold", f"feeds mixtures of embeddings, but {of_class} takes no `inputs_embeds`")
    implementation = str(model.config.get_text_config()._attn_implementation)
    if config.is_on("revocation_threshold") and not (model.takes_visibility and "flash" not in implementation):
        rule = f"hides tokens from some places of a pass, which {of_class} supports at most with "
        refuse("revocation_threshold", rule + '`attn_implementation="sdpa"`', "Set `revocation_threshold=0.0`.")
    if config.is_on("revocation_threshold") and not (sees_all and config.cache_implementation == "none"):
        rule = "computes the open blocks twice, which costs what it saves beside a cache or block-causal attention"
        refuse("revocation_threshold", rule, "Set `revocation_threshold=0.0`.")
    if config.cache_implementation != "none":
        if not model.is_native:
            rule = f"needs a model of this package (see `hf-dparallel models`), which {of_class} is not"
            refuse("cache_implementation", rule)
        if sees_all == (config.cache_implementation == "block"):
            rule = f'is not for the attention of {of_class}: "block" is for block-causal models and exact, "prefix" '
            refuse("cache_implementation", rule + 'and "dual" approximate for all others')
        if model.training and model.is_activation_checkpointing:
            rule = "needs `model.eval()`: in training, activation checkpointing drops keys and values"
            refuse("cache_implementation", rule)
    if config.suffix_length is not None and not sees_all:
        refuse("suffix_length", f"leaves out masks after the open blocks, but {of_class} computes none of them anyway")
    if config.suffix_length is not None and not model.hides_padding:
        refuse("suffix_length", f"hides masks of some rows, by an attention mask that {of_class} ignores")
    if config.compile_config is not None and not model.is_native:
        refuse("compile_config", f"compiles forward passes of this package, and {of_class} has one of its own")
    for name in ("delete_token_id", "split_token_id"):
        token = getattr(model.config, name, None)
        if token is not None and token not in config.suppress_tokens:
            rule = f"lacks {token}, the `{name}` of {of_class}: decoding cannot delete or insert tokens"
            refuse("suppress_tokens", rule, f"Set `suppress_tokens=[{token}]`.")
