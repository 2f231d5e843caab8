# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Attention masks of models that decode block by block: all of them are block-causal, in blocks of their own.

Attention is bidirectional inside a block, and causal across blocks. With a "causal_past" the blocks that are decided
fall apart into their tokens: attention is causal among these, and the open block sees them and itself.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask
from transformers import PreTrainedConfig
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS


# Returns whether a query sees a key, by row, head, query and key (indices that broadcast, or one of each).
Visibility = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def mask_blocks(
    attention: str, position_ids: torch.LongTensor, block_start: torch.LongTensor, is_past: torch.BoolTensor
) -> torch.LongTensor:
    """Returns the number of the block that a mask has each token in: the position at which this block begins.

    `block_start` is the position at which the block of the model begins, and `is_past` says whether that is decided.
    """
    return torch.where(is_past, position_ids, block_start) if attention == "causal_past" else block_start


def block_causal(query_block: torch.LongTensor, key_block: torch.LongTensor) -> Visibility:
    """Lets a query see the keys of its own block and of earlier ones.

    Their block numbers have the shapes `(rows, queries)` and `(rows, keys)`.
    """

    def is_visible(row, head, query, key):
        return key_block[row, key] <= query_block[row, query]

    return is_visible


def noisy_and_clean(block: torch.LongTensor, num_noisy: int) -> Visibility:
    """Lets rows of a noisy and a clean copy of the same tokens learn all blocks at once.

    A noisy block sees itself and the clean copies of the blocks before it, which is what it meets in decoding; the
    clean copy is block-causal in itself (https://huggingface.co/papers/2503.09573, section B.6). `block`, `(rows,
    length)`, is the number of the block that each column is in; the first `num_noisy` are the noisy copy.
    """

    def is_visible(row, head, query, key):
        query_block, key_block, query_is_noisy = block[row, query], block[row, key], query < num_noisy
        within = query_is_noisy & (key_block == query_block)
        context = (key_block < query_block) | ((key_block == query_block) & ~query_is_noisy)
        return torch.where(key < num_noisy, within, context)

    return is_visible


def mask_copies(config: PreTrainedConfig, inputs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Returns inputs of a forward pass in which `block` and `num_noisy` have become the mask of [`noisy_and_clean`].

    `block` is `(rows, length)`, or `(1, length)` if all rows have the same blocks.
    """
    inputs = dict(inputs)
    block, num_noisy = inputs.pop("block"), inputs.pop("num_noisy")
    rows, length = inputs["input_ids"].shape
    shape, is_visible = (len(block), length, length), noisy_and_clean(block.expand(rows, -1), num_noisy)
    mask = make_attention_mask(config, is_visible, shape, dtype=dtype, device=block.device)
    # For each row, because a model on several GPUs of one process is given some rows on each.
    return inputs | {"attention_mask": mask.expand(rows, -1, -1, -1) if torch.is_tensor(mask) else mask}


def predicting_columns(
    position_ids: torch.LongTensor, block_start: torch.LongTensor, num_noisy: int, shift: int
) -> torch.LongTensor:
    """Returns, for rows of a noisy and a clean copy, the column whose logits score each token.

    The first token of a block is scored by the column before, which is in the clean copy, as in decoding, and another
    one by the column that is `shift` columns before. The clean copy may lack it for blocks that teach nothing.
    `position_ids`, `(rows, length)`, count from the first token, which keeps its own logits; `block_start`, of the
    same shape, is the position at which the block of each token begins.
    """
    length = position_ids.shape[1]
    columns = torch.arange(length, device=position_ids.device)
    # In the clean copy, as an autoregressive model does.
    shift = torch.where(columns < num_noisy, shift, 1)
    before = torch.where(position_ids == block_start, num_noisy + position_ids - 1, columns - shift)
    return torch.where(position_ids == 0, columns, before.clamp(0, length - 1))


def make_attention_mask(
    config: PreTrainedConfig,
    is_visible: Visibility,
    shape: tuple[int, int, int],
    *,
    key_mask: torch.Tensor | None = None,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor | BlockMask:
    """Makes a mask as the attention that `config` names takes it: dense, `(rows, 1, queries, keys)`, or a block mask.

    `shape` is rows, queries and keys. `key_mask`, `(rows, keys)`, is 0 or `False` for padding, which nobody sees.
    `dtype` and `device` are taken from the hidden states; a dense mask is added to the scores.
    """
    rows, queries, keys = shape
    make = ALL_MASK_ATTENTION_FUNCTIONS[config._attn_implementation]
    return make(
        batch_size=rows,
        q_length=queries,
        kv_length=keys,
        mask_function=is_visible,
        attention_mask=None if key_mask is None else key_mask.to(device=device, dtype=torch.bool),
        # A shortcut to no mask at all would have to wait for the device.
        allow_is_causal_skip=False,
        dtype=dtype,
        device=device,
        config=config,
    )


def as_attention_mask(config: PreTrainedConfig, visible: torch.BoolTensor, dtype: torch.dtype) -> Any:
    """Returns what [`make_attention_mask`] would, from the keys that each query sees, `(rows, queries, keys)`."""
    if config._attn_implementation == "sdpa":
        return visible[:, None]

    def is_visible(row, head, query, key):
        return visible[row, query, key]

    return make_attention_mask(config, is_visible, tuple(visible.shape), dtype=dtype, device=visible.device)


def as_key_mask(config: PreTrainedConfig, seen: torch.Tensor, num_queries: int, dtype: torch.dtype) -> Any:
    """Returns a mask that hides the same keys from all queries, from those that are `seen`, `(rows, keys)`.

    It has one line for each row, which all queries share, where the attention takes that.
    """
    implementation = str(config._attn_implementation)
    if "flash" in implementation:
        return seen
    num_lines = num_queries if "flex" in implementation else 1
    return as_attention_mask(config, seen[:, None].bool().expand(-1, num_lines, -1), dtype)
