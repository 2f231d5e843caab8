# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Checks settings against one another and against the model."""

import inspect
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


def moves_blocks(model: PreTrainedModel) -> bool:
    """Returns whether a block-causal model can count blocks of another length, or from another column."""
    return getattr(model.config, "expert_capacity", None) is None


def drops_keys(model: PreTrainedModel) -> bool:
    """Returns whether a pass forgets keys and values: in training, with activation checkpointing."""
    # The property that says so has another name from transformers 5.23 on.
    return model.training and any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


def check(config: Any, model: PreTrainedModel) -> None:
    """Raises a [`SettingError`] if settings of a resolved configuration contradict one another or the model."""
    _check_passes(config)
    _check_revisions(config)
    _check_others(config)

    _check_blocks(config, model)
    _check_exact(config, model)
    _check_revisions_of_model(config, model)
    _check_cache(config, model)
    _check_others_of_model(config, model)


def refuse(config: Any, name: str, *, rule: str, remedy: str = "Leave it out.") -> NoReturn:
    """Raises a [`SettingError`] for a setting of a resolved configuration."""
    raise SettingError(name, getattr(config, name), rule=rule, remedy=remedy)


def _check_passes(config: Any) -> None:
    rule = config.commit_rule()
    num_tokens = config.max_new_tokens
    num_blocks = -(-num_tokens // config.block_length)

    if rule == "denoising_steps" and config.is_infilling:
        refuse(
            config,
            "denoising_steps",
            rule="needs `max_new_tokens` other than 0",
            remedy="Use a commit rule with a threshold.",
        )
    if rule == "denoising_steps" and not num_blocks <= config.denoising_steps <= num_tokens:
        nearest = min(max(config.denoising_steps, num_blocks), num_tokens)
        refuse(
            config,
            "denoising_steps",
            rule=f"must be at least {num_blocks}, the number of blocks of {config.block_length}, and at most "
            f"`max_new_tokens={num_tokens}`",
            remedy=f"Use denoising_steps={nearest}. (A recipe counts where you say nothing.)",
        )

    for name in NEED_THRESHOLD:
        if config.is_on(name) and rule in (None, "denoising_steps"):
            refuse(
                config,
                name,
                rule="needs a commit rule with a threshold",
                remedy=f"Set one such as `entropy_threshold`, or `{name}={SETTINGS[name].default}`.",
            )


def _check_revisions(config: Any) -> None:
    revising = [name for name in REVISIONS if config.is_on(name)]
    if len(revising) > 1:
        first, second, *_ = revising
        refuse(
            config,
            second,
            rule=f"does not go with `{first}={getattr(config, first)!r}`",
            remedy="Leave one of the two out.",
        )


def _check_others(config: Any) -> None:
    for name in (*REVISIONS, "suffix_length"):
        if config.is_on(name) and config.compile_config is not None:
            refuse(
                config,
                name,
                rule="does not go with `compile_config`",
                remedy=f"Set `{name}={SETTINGS[name].default!r}`.",
            )

    if config.is_on("no_repeat_ngram_size") and not config.exact:
        refuse(
            config,
            "no_repeat_ngram_size",
            rule="asks for the tokens just before each one, which diffusion decides in any order",
            remedy="Leave it out, or use `exact=True` with a model that has a causal past.",
        )
    if config.stop_strings and config.is_infilling:
        refuse(
            config,
            "stop_strings",
            rule="needs `max_new_tokens` other than 0",
            remedy="Leave it out: masks are filled in any order.",
        )
    if config.cache_refresh_interval is not None and config.cache_implementation not in ("prefix", "dual"):
        refuse(config, "cache_refresh_interval", rule='needs the cache "prefix" or "dual", which approximate')


def _check_blocks(config: Any, model: PreTrainedModel) -> None:
    of_class = type(model).__name__
    sees_all = model.attention == "full"

    if config.is_infilling and not sees_all:
        refuse(
            config,
            "max_new_tokens",
            rule=f"fills in mask tokens, but {of_class} does not see later blocks",
            remedy="Append new tokens, or use a model with full attention.",
        )
    if not sees_all and config.block_length != model.config.block_length and not moves_blocks(model):
        refuse(config, "block_length", rule=f"is not that of {of_class}, which chooses experts for its blocks")
    if config.block_origin == "answer" and sees_all:
        refuse(
            config,
            "block_origin",
            rule=f"is for models whose attention has blocks: in {of_class} they follow the prompt anyway",
        )
    if config.block_origin == "answer" and not moves_blocks(model):
        refuse(config, "block_origin", rule=f"would move the blocks that {of_class} chooses experts for")
    if config.max_active_blocks > 1 and model.attention == "causal_past":
        refuse(
            config,
            "max_active_blocks",
            rule=f"opens a block after one that is not decided, which {of_class} does not see",
        )


def _check_exact(config: Any, model: PreTrainedModel) -> None:
    if not config.exact:
        return

    of_class = type(model).__name__
    if model.attention != "causal_past":
        refuse(
            config,
            "exact",
            rule=f"verifies tokens by causal logits, which {of_class} with its {model.attention} attention has not",
            remedy='Leave it out, or use a model of `convert_to_diffusion(..., attention="causal_past")`.',
        )
    if config.denoising_steps not in (None, config.max_new_tokens):
        refuse(
            config,
            "denoising_steps",
            rule="does not go with `exact`",
            remedy="Use a threshold, such as `confidence_threshold`.",
        )
    refuse_revisions(config, model)


def refuse_revisions(config: Any, model: PreTrainedModel) -> None:
    """Raises a [`SettingError`] if a configuration revises tokens of a block, for decoding without blocks."""
    for name in REVISIONS:
        if config.is_on(name):
            rule = f"revises tokens of a block, and {type(model).__name__} decodes without blocks"
            refuse(config, name, rule=rule)


def _check_revisions_of_model(config: Any, model: PreTrainedModel) -> None:
    of_class = type(model).__name__
    if config.is_on("soft_threshold") and "inputs_embeds" not in inspect.signature(model.forward).parameters:
        refuse(
            config,
            "soft_threshold",
            rule=f"feeds mixtures of embeddings, but {of_class} takes no `inputs_embeds`",
        )
    if not config.is_on("revocation_threshold"):
        return

    implementation = str(model.config.get_text_config()._attn_implementation)
    if not model.takes_visibility or "flash" in implementation:
        refuse(
            config,
            "revocation_threshold",
            rule=f"hides tokens from some places of a pass, which {of_class} supports at most with "
            '`attn_implementation="sdpa"`',
            remedy="Set `revocation_threshold=0.0`.",
        )
    if model.attention != "full" or config.cache_implementation != "none":
        refuse(
            config,
            "revocation_threshold",
            rule="computes the open blocks twice, which costs what it saves beside a cache or block-causal attention",
            remedy="Set `revocation_threshold=0.0`.",
        )


def _check_cache(config: Any, model: PreTrainedModel) -> None:
    if config.cache_implementation == "none":
        return

    of_class = type(model).__name__
    if not model.is_native:
        refuse(
            config,
            "cache_implementation",
            rule=f"needs a model of this package (see `hf-dparallel models`), which {of_class} is not",
        )
    if (config.cache_implementation == "block") == (model.attention == "full"):
        refuse(
            config,
            "cache_implementation",
            rule=f'is not for the attention of {of_class}: "block" is for block-causal models and exact, "prefix" '
            'and "dual" approximate for all others',
        )
    if drops_keys(model):
        refuse(
            config,
            "cache_implementation",
            rule="needs `model.eval()`: in training, activation checkpointing drops keys and values",
        )


def _check_others_of_model(config: Any, model: PreTrainedModel) -> None:
    of_class = type(model).__name__
    if config.suffix_length is not None and model.attention != "full":
        refuse(
            config,
            "suffix_length",
            rule=f"leaves out masks after the open blocks, but {of_class} computes none of them anyway",
        )
    if config.suffix_length is not None and not model.hides_padding:
        refuse(
            config,
            "suffix_length",
            rule=f"hides masks of some rows, by an attention mask that {of_class} ignores",
        )
    if config.compile_config is not None and not model.is_native:
        refuse(
            config,
            "compile_config",
            rule=f"compiles forward passes of this package, and {of_class} has one of its own",
        )

    for name in ("delete_token_id", "split_token_id"):
        token = getattr(model.config, name, None)
        if token is not None and token not in config.suppress_tokens:
            refuse(
                config,
                "suppress_tokens",
                rule=f"lacks {token}, the `{name}` of {of_class}: decoding cannot delete or insert tokens",
                remedy=f"Set `suppress_tokens=[{token}]`.",
            )
