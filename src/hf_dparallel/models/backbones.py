# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A mixin that lets positions of a transformers decoder see others than the ones before them."""

import inspect
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache
from transformers.masking_utils import create_causal_mask
from transformers.models.qwen2.modeling_qwen2 import Qwen2Model
from transformers.models.qwen3.modeling_qwen3 import Qwen3Model

from ..attention_masks import attention_blocks, block_causal, make_attention_mask


# transformers' name of the cache argument: "cache" since 5.24, and nothing else from 5.40 on.
CACHE_ARGUMENT = "cache" if "cache" in inspect.signature(create_causal_mask).parameters else "past_key_values"


class DiffusionBackbone:
    """Lets the positions of a transformers decoder attend as its config states it: `config.attention`.

    With "full", every position sees every other one. With "block_causal", attention is bidirectional inside a block of
    `config.block_length` positions and causal across blocks, which are counted from position 0 of each row. With
    "causal_past", the last `config.block_length` positions see all, and the others the ones up to their own.
    The mask creation of transformers reads `config.is_causal = False`; the attention functions (SDPA without a mask,
    flash attention) read the flag of the module.
    """

    config: Any
    # Flash attention knows no blocks.
    _supports_flash_attn = property(lambda self: self.config.attention == "full")

    def __init__(self, config: PreTrainedConfig):
        super().__init__(config)  # type: ignore[call-arg]
        for layer in self.layers:  # type: ignore[attr-defined]
            layer.self_attn.is_causal = False

    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | BlockMask | dict[str, torch.Tensor | BlockMask | None] | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        **kwargs,
    ):
        """Runs the decoder's forward pass, with another meaning of two arguments.

        `attention_mask` is 1 for real tokens, 0 for padding, of shape `(rows, keys)`. A 4-D mask or a `BlockMask` is
        taken as it is, and so is `{"full_attention": mask}`, where `None` lets every query see every key.
        `position_ids`, `(rows, queries)`, are by default counted from the first real token of each row.
        """
        cache = kwargs.setdefault(CACHE_ARGUMENT, past_key_values)
        if inputs_embeds is None:
            if getattr(self.config, "mask_token_id", None) == self.config.vocab_size:
                # A mask token after the vocabulary has the embedding of the last token.
                input_ids = input_ids.clamp(max=self.config.vocab_size - 1)  # type: ignore[union-attr]
            inputs_embeds = self.embed_tokens(input_ids)  # type: ignore[attr-defined]

        if isinstance(attention_mask, dict):
            attention_mask = attention_mask["full_attention"]
        elif self.config.attention != "full" and (attention_mask is None or len(attention_mask.shape) == 2):
            # transformers makes those of full attention.
            attention_mask, position_ids = self._make_mask(inputs_embeds, attention_mask, position_ids, cache)

        return super().forward(  # type: ignore[misc]
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )

    def _make_mask(self, inputs_embeds, key_mask, position_ids, cache):
        """Returns the mask of 2-D inputs and the query positions."""
        rows, queries, _ = inputs_embeds.shape
        keys = queries
        if cache is not None:
            keys, _ = cache.get_mask_sizes(queries, 0)
        if key_mask is None:
            key_mask = torch.ones(rows, keys, device=inputs_embeds.device)

        key_positions = (key_mask.long().cumsum(dim=1) - 1).clamp(min=0)
        if position_ids is None:
            position_ids = key_positions[:, -queries:]
        else:
            position_ids = position_ids.expand(rows, -1)
            if cache is None:
                key_positions = position_ids

        # Where the open block of a causal past begins: it is the last one.
        open_start = key_positions.amax(dim=1, keepdim=True) + 1 - self.config.block_length
        query_blocks = self._blocks(position_ids, open_start)
        key_blocks = self._blocks(key_positions, open_start)

        mask = make_attention_mask(
            self.config,
            block_causal(query_blocks, key_blocks),
            (rows, queries, keys),
            key_mask=key_mask,
            dtype=inputs_embeds.dtype,
            device=inputs_embeds.device,
        )
        return mask, position_ids

    def _blocks(self, positions, open_start):
        """Returns the block of each position; of a causal past all from `open_start` on is one."""
        block_start = positions - positions % self.config.block_length
        if self.config.attention == "causal_past":
            block_start = open_start
        return attention_blocks(self.config.attention, positions, block_start, positions < open_start)


class Qwen2Backbone(DiffusionBackbone, Qwen2Model):
    """The decoder of Qwen2."""


class Qwen3Backbone(DiffusionBackbone, Qwen3Model):
    """The decoder of Qwen3."""
