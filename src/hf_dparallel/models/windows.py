# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Scoring of windows of masks in training: what the masks of a model with a causal past predict after given tokens."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from ..attention_masks import block_causal, make_attention_mask
from ..generation.mask_gate import MaskGate, gate_adapters


def score_windows(
    model: PreTrainedModel, inputs: dict[str, torch.Tensor], forward: Callable[..., Any], **head: Any
) -> Any:
    """Returns the output of a forward pass over masks, whose cache has the tokens before them ([`WindowCollator`]).

    The tokens are computed causally, without the adapter and without gradients; only masks have a backward pass.
    """
    past_ids, window = inputs["past_ids"], inputs["window"]
    length = past_ids.shape[1]
    positions = torch.arange(length, device=window.device).expand(len(window), -1)
    cache = DynamicCache(config=model.config)

    def attention_mask(is_visible: Any, queries: int, keys: int) -> dict[str, Any]:
        shape = (len(window), queries, keys)
        mask = make_attention_mask(model.config, is_visible, shape, dtype=model.dtype, device=window.device)
        return {"full_attention": mask}

    def is_visible(row, head, query, key):
        # Tokens before the window, and its own masks, whose keys come after all tokens.
        block = torch.cat([positions, window], dim=1)[row, key]
        return torch.where(key < length, block < window[row, query], block == window[row, query])

    gate = gate_adapters(model) or MaskGate([])
    with torch.no_grad(), gate.on(None):
        causal = attention_mask(block_causal(positions, positions), length, length)
        past = {"input_ids": past_ids, "position_ids": positions, "attention_mask": causal}
        forward(**past, past_key_values=cache, logits_to_keep=1)
    with gate.on(torch.ones(1, 1, dtype=torch.bool, device=window.device)):
        return forward(
            input_ids=inputs["input_ids"],
            position_ids=inputs["position_ids"],
            attention_mask=attention_mask(is_visible, window.shape[1], length + window.shape[1]),
            past_key_values=cache,
            # Each mask predicts the token after its place, which is where its label stands.
            predicted_by=torch.arange(window.shape[1], device=window.device).expand(len(window), -1),
            **head,
        )
