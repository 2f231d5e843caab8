# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Checks of what `generate` is given beside its settings, before any work is done."""

from collections.abc import Iterable, Sequence

import torch
from transformers import PreTrainedModel
from transformers.utils import logging

from .compatibility import longest_sequence
from .configuration import DiffusionGenerationConfig


logger = logging.get_logger(__name__)


def check_prompts(
    input_ids: torch.LongTensor | None,
    attention_mask: torch.LongTensor | None,
    config: DiffusionGenerationConfig,
    model: PreTrainedModel,
) -> tuple[torch.LongTensor, torch.LongTensor]:
    """Returns prompts and attention mask, both `(batch_size, prompt_length)`, if they can be decoded."""
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
    if input_ids.is_floating_point() or input_ids.is_complex() or input_ids.dtype is torch.bool:
        raise ValueError(f"`input_ids` must be token ids (integers), got {input_ids.dtype}. Tokenize the prompts.")
    # On the host, so that no check waits for the device.
    ids = input_ids.long().cpu()
    mask = attention_mask.cpu() if isinstance(attention_mask, torch.Tensor) else attention_mask
    if mask is None:
        _check_unmarked_padding(ids, config)
        mask = torch.ones_like(ids)
    _check_padding(ids, mask)
    _check_vocabulary(ids, vocabulary_size(model), config)
    _check_masks(ids, mask, config)
    longest = longest_sequence(model)
    if longest is not None and ids.shape[1] + config.max_new_tokens > longest:
        logger.warning_once(
            f"Prompt and new tokens are {ids.shape[1] + config.max_new_tokens} tokens, more than the {longest} "
            "that the model was trained for. Shorten one of them."
        )
    device = input_ids.device
    return input_ids.long(), mask.long().to(device) if attention_mask is None else attention_mask.long()


def generators_per_row(
    generator: torch.Generator | Sequence[torch.Generator] | None, batch_size: int
) -> list[torch.Generator] | None:
    """Returns one generator per row."""
    if generator is None:
        return None
    generators = [generator] * batch_size if isinstance(generator, torch.Generator) else generator
    rule = "`generator` must be one torch.Generator or one per row"
    if not isinstance(generators, Sequence) or not all(isinstance(each, torch.Generator) for each in generators):
        raise ValueError(f"{rule}, got {generator!r}.")
    if len(generators) != batch_size:
        raise ValueError(f"{rule}, got {len(generators)} for {batch_size} rows.")
    return list(generators)


def check_generators(generators: Iterable[torch.Generator], device: torch.device) -> None:
    """Raises a `ValueError` if one is not on the device of the prompts."""
    for generator in generators:
        if generator.device.type != device.type:
            raise ValueError(
                f"A `generator` is on {generator.device} and the prompts are on {device}. Make it there: "
                f"`torch.Generator({device.type!r})`."
            )


def input_device(model: PreTrainedModel) -> torch.device:
    """The device that a model takes token ids on, also where its weights are elsewhere between two passes."""
    embedding = model.get_input_embeddings()
    # accelerate moves inputs, and offloaded weights, here.
    device = getattr(getattr(embedding, "_hf_hook", None), "execution_device", None)
    return torch.device(device) if device is not None else embedding.weight.device


def check_devices(
    input_ids: torch.LongTensor, attention_mask: torch.LongTensor | None, model: PreTrainedModel
) -> None:
    """Checks that the prompts are where the model takes them."""
    device = input_device(model)
    for name, tensor in (("input_ids", input_ids), ("attention_mask", attention_mask)):
        if isinstance(tensor, torch.Tensor) and tensor.device.type != device.type and device.type != "meta":
            raise ValueError(
                f"`{name}` is on {tensor.device} and the model takes tokens on {device}. Pass "
                "`**inputs.to(model.device)`."
            )


def check_peft(model: PreTrainedModel) -> None:
    """Checks what a PEFT model over `model` adds to a call of `generate`, which it tells by hooks only."""
    owner = getattr(model.prepare_inputs_for_generation, "__self__", None)
    config = getattr(owner, "active_peft_config", None)
    if getattr(config, "is_prompt_learning", False):
        raise ValueError(
            f"{type(config).__name__} puts virtual tokens before the prompt, which has no effect on diffusion "
            "decoding. Use an adapter of the weights, such as LoRA."
        )
    hooks = (hook for module in model.modules() for hook in module._forward_pre_hooks.values())
    if any("adapter_names" in getattr(hook, "keywords", {}) for hook in hooks):
        raise ValueError(
            "`adapter_names`, an adapter for each row, is not supported: rows leave the batch when they are finished. "
            "Call `set_adapter`, and `generate` once for each adapter."
        )


def vocabulary_size(model: PreTrainedModel) -> int:
    """Number of token ids that a model knows. The config says it even where an adapter wraps the embedding."""
    known = getattr(model.config.get_text_config(), "vocab_size", None)
    return known if known is not None else model.get_input_embeddings().num_embeddings


def _check_unmarked_padding(input_ids: torch.LongTensor, config: DiffusionGenerationConfig) -> None:
    """Without a mask, padding can only be guessed at: where some prompts but not all begin or end with its token."""
    is_padding = input_ids == config.pad_token_id if config.pad_token_id is not None else input_ids < 0
    for side, column in (("start", 0), ("end", -1)):
        if is_padding[:, column].any() and not is_padding[:, column].all():
            logger.warning_once(
                f"Some prompts {side} with the padding token and `attention_mask` was not given, so the padding is "
                "attended to. Pad on the left and pass the attention mask that the tokenizer returns."
            )


def _check_vocabulary(input_ids: torch.LongTensor, vocab_size: int, config: DiffusionGenerationConfig) -> None:
    outside = (input_ids < 0) | (input_ids >= vocab_size)
    if outside.any():
        row, column = outside.nonzero()[0].tolist()
        raise ValueError(
            f"`input_ids[{row}, {column}]` is {input_ids[row, column].item()}, outside the model's vocabulary of "
            f"{vocab_size} tokens. Use the tokenizer that belongs to the model."
        )
    banned = [*config.suppress_tokens, *(token_id for (token_id,) in config.bad_words_ids)]
    special = {
        "mask_token_id": [config.mask_token_id],
        "eos_token_id": config.eos_token_ids,
        "pad_token_id": [config.padding_token_id],
        "suppress_tokens` or `bad_words_ids": banned,
    }
    for name, token_ids in special.items():
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                raise ValueError(
                    f"`{name}={token_id}` is outside the model's vocabulary of {vocab_size} tokens. Set the id that "
                    f"the model was trained with: `{name}=` in `generate`."
                )
    if config.mask_token_id in (*config.eos_token_ids, config.padding_token_id):
        raise ValueError(
            f"`mask_token_id={config.mask_token_id}` is the end or padding token, too. Set the one that is wrong."
        )
    if len({*banned, config.mask_token_id}) >= vocab_size:
        raise ValueError("`suppress_tokens` and `bad_words_ids` leave no token to decode. Remove some.")


def _check_masks(input_ids: torch.LongTensor, attention_mask: torch.Tensor, config: DiffusionGenerationConfig) -> None:
    token_id = config.mask_token_id
    has_masks = ((input_ids == token_id) & attention_mask.bool()).any(dim=1)
    if not config.is_infilling and has_masks.any():
        raise ValueError(
            f"`input_ids` contains the mask token ({token_id}) in row {has_masks.nonzero()[0].item()}, and "
            f"{config.max_new_tokens} new tokens are to be appended. Set `max_new_tokens=0` to fill in the masks "
            "of the prompt, or remove them."
        )
    if config.is_infilling and not has_masks.any():
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
    if not ((attention_mask == 0) | (attention_mask == 1)).all():
        raise ValueError(
            "`attention_mask` must be 1 for tokens and 0 for padding, and has other values. Pass the one that the "
            "tokenizer returns."
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
