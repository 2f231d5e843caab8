# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Checks of what `generate` is given, before any work is done."""

import torch
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from .configuration import DiffusionGenerationConfig


logger = logging.get_logger(__name__)


def resolve_special_tokens(
    config: DiffusionGenerationConfig,
    model_config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> DiffusionGenerationConfig:
    """Fills in mask, end and padding tokens from the model's config, then from the tokenizer.

    Raises:
        ValueError: if no mask token is known.
    """
    found = {}
    for name in ("mask_token_id", "eos_token_id", "pad_token_id"):
        sources = [getattr(source, name, None) for source in (config, model_config, tokenizer) if source is not None]
        found[name] = next((value for value in sources if value is not None), None)
    if found["mask_token_id"] is None:
        raise ValueError(
            "No mask token is known: `mask_token_id` is set neither in the generation config, nor in the model's "
            "config, nor by a tokenizer with a mask token. Pass `mask_token_id=` to `generate`, or set "
            "`model.generation_config.mask_token_id`."
        )
    return config.updated(**found)


def resolve_generation_config(
    model: PreTrainedModel,
    generation_config: GenerationConfig | None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    **settings,
) -> DiffusionGenerationConfig:
    """Returns every setting that `generate` uses, special tokens included.

    Merges the defaults, the model's recipe, `generation_config` and `settings`, the last winning.
    """
    config = DiffusionGenerationConfig.from_generation_config(model.generation_config)
    if generation_config is not None:
        given = DiffusionGenerationConfig.from_generation_config(generation_config)
        config = config.updated(**given.settings())
    DiffusionGenerationConfig(**settings)  # refuses what is unknown or contradicts itself
    return resolve_special_tokens(config.updated(**settings).with_defaults(), model.config, tokenizer)


def check_prompts(
    input_ids: torch.LongTensor | None,
    attention_mask: torch.LongTensor | None,
    config: DiffusionGenerationConfig,
    model: PreTrainedModel,
) -> tuple[torch.LongTensor, torch.LongTensor]:
    """Returns prompts and attention mask, both `(batch_size, prompt_length)`, if they can be decoded.

    Raises:
        ValueError: for prompts that are missing, empty, right-padded, outside the vocabulary, or with mask tokens
            where they cannot be decoded.
    """
    if not isinstance(input_ids, torch.Tensor) or input_ids.ndim != 2:
        got = tuple(input_ids.shape) if isinstance(input_ids, torch.Tensor) else input_ids
        raise ValueError(
            f"`input_ids` must be a tensor of shape (batch_size, prompt_length), got {got}. Pass `**inputs` of a "
            "tokenizer with `return_tensors='pt'`."
        )
    if input_ids.numel() == 0:
        raise ValueError(
            f"`input_ids` is empty, of shape {tuple(input_ids.shape)}. Give each row at least one token, such as the "
            "beginning-of-sequence token."
        )
    input_ids = input_ids.long()
    _check_vocabulary(input_ids, vocabulary_size(model), config.mask_token_id)
    _check_masks(input_ids, config)
    if attention_mask is None:
        _check_unmarked_padding(input_ids, config)
        attention_mask = torch.ones_like(input_ids)
    _check_padding(input_ids, attention_mask)
    longest = longest_sequence(model)
    if longest is not None and input_ids.shape[1] + config.max_new_tokens > longest:
        logger.warning_once(
            f"Prompt and new tokens are {input_ids.shape[1] + config.max_new_tokens} tokens, more than the {longest} "
            "that the model was trained for. Shorten one of them."
        )
    return input_ids, attention_mask.long()


def vocabulary_size(model: PreTrainedModel) -> int:
    """Number of token ids that a model knows. The config says it even where an adapter wraps the embedding."""
    known = getattr(model.config.get_text_config(), "vocab_size", None)
    return known if known is not None else model.get_input_embeddings().num_embeddings


def longest_sequence(model: PreTrainedModel) -> int | None:
    """Number of tokens, of prompt and answer together, that a model was trained for, if its config says it."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def _check_unmarked_padding(input_ids: torch.LongTensor, config: DiffusionGenerationConfig) -> None:
    """Without a mask, padding can only be guessed at: where some prompts but not all begin or end with its token."""
    is_padding = input_ids == config.pad_token_id if config.pad_token_id is not None else input_ids < 0
    for side, column in (("start", 0), ("end", -1)):
        if is_padding[:, column].any() and not is_padding[:, column].all():
            logger.warning_once(
                f"Some prompts {side} with the padding token and `attention_mask` was not given, so the padding is "
                "attended to. Pad on the left and pass the attention mask that the tokenizer returns."
            )


def _check_vocabulary(input_ids: torch.LongTensor, vocab_size: int, mask_token_id: int) -> None:
    outside = (input_ids < 0) | (input_ids >= vocab_size)
    if outside.any():
        row, column = outside.nonzero()[0].tolist()
        raise ValueError(
            f"`input_ids[{row}, {column}]` is {input_ids[row, column].item()}, outside the model's vocabulary of "
            f"{vocab_size} tokens. Use the tokenizer that belongs to the model."
        )
    if not 0 <= mask_token_id < vocab_size:
        raise ValueError(
            f"`mask_token_id={mask_token_id}` is outside the model's vocabulary of {vocab_size} tokens. Set the id of "
            "the mask token that the model was trained with."
        )


def _check_masks(input_ids: torch.LongTensor, config: DiffusionGenerationConfig) -> None:
    token_id = config.mask_token_id
    has_masks = (input_ids == token_id).any(dim=1)
    if config.max_new_tokens and has_masks.any():
        raise ValueError(
            f"`input_ids` contains the mask token ({token_id}) in row {has_masks.nonzero()[0].item()}, and "
            f"{config.max_new_tokens} new tokens are to be appended. Set `max_new_tokens=0` to fill in the masks "
            "of the prompt, or remove them."
        )
    if not config.max_new_tokens and not has_masks.any():
        raise ValueError(
            f"`max_new_tokens=0` fills in the mask tokens ({token_id}) of the prompt, and `input_ids` has "
            "none. Set `max_new_tokens` to append new tokens."
        )


def _check_padding(input_ids: torch.LongTensor, attention_mask: torch.LongTensor) -> None:
    if not isinstance(attention_mask, torch.Tensor) or attention_mask.shape != input_ids.shape:
        got = tuple(attention_mask.shape) if isinstance(attention_mask, torch.Tensor) else attention_mask
        raise ValueError(
            f"`attention_mask` must be a tensor of the shape of `input_ids`, {tuple(input_ids.shape)}, got {got}."
        )
    empty = (attention_mask == 0).all(dim=1)
    if empty.any():
        raise ValueError(
            f"`attention_mask` is 0 everywhere in row {empty.nonzero()[0].item()}: that prompt is empty. Give it at "
            "least one token."
        )
    right_padded = (attention_mask[:, 1:].long() < attention_mask[:, :-1].long()).any(dim=1)
    if right_padded.any():
        raise ValueError(
            f"Row {right_padded.nonzero()[0].item()} is padded on the right (`attention_mask` goes from 1 to 0), but "
            "the new tokens follow the prompt. Tokenize with `padding_side='left'`."
        )
