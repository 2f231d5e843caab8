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


def attention_blocks(
    attention: str, position_ids: torch.LongTensor, block_start: torch.LongTensor, is_past: torch.BoolTensor
) -> torch.LongTensor:
    """Returns the number of the block that attention has each token in: the position at which this block begins.

    `block_start` is the position at which the block of the model begins, and `is_past` says whether that is decided.
    """
    if attention == "causal_past":
        return torch.where(is_past, position_ids, block_start)
    return block_start


def block_causal(query_block: torch.LongTensor, key_block: torch.LongTensor) -> Visibility:
    """Lets a query see the keys of its own block and of earlier ones.

    Their block numbers have the shapes `(rows, queries)` and `(rows, keys)`.
    """

    def is_visible(row, head, query, key):
        return key_block[row, key] <= query_block[row, query]

    return is_visible


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
    if key_mask is not None:
        key_mask = key_mask.to(device=device, dtype=torch.bool)

    make = ALL_MASK_ATTENTION_FUNCTIONS[config._attn_implementation]
    return make(
        batch_size=rows,
        q_length=queries,
        kv_length=keys,
        mask_function=is_visible,
        attention_mask=key_mask,
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
