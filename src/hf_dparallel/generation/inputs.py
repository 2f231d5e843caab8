# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Checks the arguments of `generate` that are not settings, before any work is done."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from hf_dparallel_rules.settings import SettingError

from .compatibility import longest_sequence
from .configuration import DiffusionGenerationConfig


def check_prompts(
    input_ids: torch.LongTensor | None,
    attention_mask: torch.LongTensor | None,
    config: DiffusionGenerationConfig,
    model: PreTrainedModel,
) -> list[torch.LongTensor]:
    """Checks prompts, and returns the tokens of each without padding, on the device that the model takes them on."""
    if not isinstance(input_ids, torch.Tensor) or input_ids.ndim != 2 or not input_ids.numel():
        raise SettingError(
            "input_ids",
            _shape(input_ids),
            rule="must be a tensor of shape (batch_size, prompt_length) with at least one token",
            remedy="Pass `**inputs` of a tokenizer with `return_tensors='pt'`.",
        )
    if input_ids.is_floating_point() or input_ids.is_complex() or input_ids.dtype is torch.bool:
        raise SettingError(
            "input_ids", input_ids.dtype, rule="must be token ids (integers)", remedy="Tokenize the prompts."
        )

    # On the host, so that no check waits for the device.
    ids = input_ids.long().cpu()
    mask = _mask_on_host(ids, attention_mask, model)
    if not model.hides_padding and not mask.all():
        raise SettingError(
            "attention_mask",
            _shape(mask),
            rule=f"hides padding, which {type(model).__name__} ignores",
            remedy="Give prompts of one length, or use `generate_many`.",
        )
    _check_vocabulary(ids, model, config)

    has_masks = ((ids == config.mask_token_id) & mask.bool()).any(dim=1)
    if not config.is_infilling and has_masks.any():
        raise ValueError(
            f"`input_ids` contains the mask token ({config.mask_token_id}) in row {_first(has_masks)}, but "
            f"`max_new_tokens={config.max_new_tokens}` appends tokens. Remove it, or fill it in by `max_new_tokens=0`."
        )
    if config.is_infilling and not has_masks.all():
        raise SettingError(
            "max_new_tokens",
            0,
            rule=f"fills in masks (token {config.mask_token_id}), and row {_first(~has_masks)} of `input_ids` "
            "has none",
            remedy="Raise `max_new_tokens` to append new tokens.",
        )

    longest = longest_sequence(model)
    # It may have learned embeddings of its positions, where those of this package have rotary ones.
    if not model.is_native and longest is not None and ids.shape[1] + config.max_new_tokens > longest:
        raise SettingError(
            "max_new_tokens",
            config.max_new_tokens,
            rule=f"and a prompt of {ids.shape[1]} are more than the {longest} positions of {type(model).__name__}",
            remedy="Shorten one of them.",
        )

    lengths = mask.long().sum(dim=1).tolist()
    input_ids = input_ids.long().to(input_device(model))
    return [row[-length:] for row, length in zip(input_ids, lengths, strict=True)]


def _mask_on_host(
    input_ids: torch.LongTensor, attention_mask: torch.LongTensor | None, model: PreTrainedModel
) -> torch.LongTensor:
    """Returns the mask of left-padded prompts, by default without padding, after checking it."""
    if attention_mask is None:
        if hasattr(model.config, "pad_token_id"):  # not in remote code
            model.warn_if_padding_and_no_attention_mask(input_ids, attention_mask)
        return torch.ones_like(input_ids)

    if not isinstance(attention_mask, torch.Tensor) or attention_mask.shape != input_ids.shape:
        raise SettingError(
            "attention_mask",
            _shape(attention_mask),
            rule=f"must be a tensor of the shape of `input_ids`, {_shape(input_ids)}",
        )

    mask = attention_mask.cpu()
    is_binary = ((mask == 0) | (mask == 1)).all(dim=1)
    is_left_padded = (mask.float().diff(dim=1) >= 0).all(dim=1) & (mask[:, -1] == 1)
    is_right = is_binary & is_left_padded
    if not is_right.all():
        row = _first(~is_right)
        raise SettingError(
            "attention_mask",
            attention_mask[row].tolist(),
            rule=f"must be 0 for padding on the left and 1 for the tokens after it, at least one, also in row {row}",
            remedy="Tokenize with `padding_side='left'`.",
        )
    return mask


def _check_vocabulary(input_ids: torch.LongTensor, model: PreTrainedModel, config: DiffusionGenerationConfig) -> None:
    vocab_size = vocabulary_size(model)
    outside = (input_ids < 0) | (input_ids >= vocab_size)
    if outside.any():
        row, column = outside.nonzero()[0].tolist()
        raise ValueError(
            f"`input_ids[{row}, {column}]` is {input_ids[row, column].item()}, outside the model's vocabulary of "
            f"{vocab_size} tokens. Use the tokenizer that belongs to the model."
        )

    used = [("mask_token_id", config.mask_token_id)]
    used += [("eos_token_id", token_id) for token_id in config.eos_token_ids]
    used += [("pad_token_id", config.padding_token_id)]
    used += [("suppress_tokens", token_id) for token_id in config.suppress_tokens]
    for name, token_id in used:
        # The mask token of a model with a causal past may be the one after its vocabulary: nobody writes it.
        is_after = name == "mask_token_id" and token_id == vocab_size and model.attention == "causal_past"
        if not 0 <= token_id < vocab_size and not is_after:
            raise SettingError(
                name,
                token_id,
                rule=f"is outside the model's vocabulary of {vocab_size} tokens",
                remedy="Take it from the tokenizer of the model.",
            )

    if config.mask_token_id in (*config.eos_token_ids, config.padding_token_id):
        raise SettingError(
            "mask_token_id",
            config.mask_token_id,
            rule="is the end or padding token, too",
            remedy="Set the one that is wrong.",
        )
    if len({config.mask_token_id, *config.suppress_tokens}) >= vocab_size:
        raise ValueError("`suppress_tokens` leaves no token to decode. Remove some.")


def vocabulary_size(model: PreTrainedModel) -> int:
    """Returns a model's number of token ids: the config has it even if an adapter wraps the embedding."""
    known = getattr(model.config.get_text_config(), "vocab_size", None)
    if known is not None:
        return known
    return model.get_input_embeddings().num_embeddings


def _shape(value: Any) -> Any:
    """Returns the shape of a tensor, for messages, and anything else as it is."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    return value


def _first(rows: torch.BoolTensor) -> int:
    return int(rows.nonzero()[0])


def generators_by_row(
    generator: torch.Generator | Sequence[torch.Generator] | None, batch_size: int
) -> Callable[[int], torch.Generator] | None:
    """Returns a function that gives the generator of a row."""
    if generator is None:
        return None
    if isinstance(generator, torch.Generator):
        return lambda row: generator

    is_list = isinstance(generator, Sequence) and all(isinstance(each, torch.Generator) for each in generator)
    if not is_list or len(generator) != batch_size:
        raise SettingError(
            "generator", generator, rule=f"must be one torch.Generator, or one for each of {batch_size} rows"
        )
    return generator.__getitem__


def input_device(model: PreTrainedModel) -> torch.device:
    """Returns the device that a model takes token ids on, even if its weights are offloaded between passes."""
    embedding = model.get_input_embeddings()
    # accelerate moves inputs, and offloaded weights, here.
    device = getattr(getattr(embedding, "_hf_hook", None), "execution_device", None)
    if device is None:
        return embedding.weight.device
    return torch.device(device)
