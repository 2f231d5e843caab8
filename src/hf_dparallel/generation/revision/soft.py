# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Soft decoding: every pass decides the tokens of the open blocks again."""

import torch
from transformers import PreTrainedModel

from hf_dparallel_rules.certainty import TokenPrediction

from ..canvas import Canvas
from ..configuration import DiffusionGenerationConfig
from ..hooks.base import Change, DecodingHook
from ..plan import Pass


class SoftDecoding(DecodingHook):
    """Decides every decided token again, whatever its probability (DMax).

    A pass sees a decided token as a mixture of its embedding and the mask token's ([`mix_embeddings`]).
    A block is left when it is decided and either all its tokens have a probability of at least 0.9 or the pass has
    changed none of them, and at the latest after as many passes as it has tokens
    (https://huggingface.co/papers/2604.08302).
    """

    SURE = 0.9
    revises = True
    setting = "soft_threshold"

    def __init__(self, config: DiffusionGenerationConfig):
        self.config = config

    def attach(self, model: PreTrainedModel, canvas: Canvas) -> None:
        super().attach(model, canvas)
        # The probability that each decided token had in the last pass.
        self.confidence = canvas.row_tensor(1.0)

    def extend(self, planned: Pass) -> Pass:
        """Replaces the embeddings of decided tokens by mixtures."""
        canvas = self.canvas
        tokens = planned.of(canvas.sequences)
        weights = planned.of(self.confidence.value.masked_fill(~canvas.revisable, 1))
        embeddings = self.model.get_input_embeddings()
        mixed = mix_embeddings(embeddings, tokens, weights, self.config.mask_token_id)
        return planned._replace(inputs_embeds=mixed)

    def change(self, prediction: TokenPrediction, change: Change) -> Change:
        canvas = self.canvas
        columns = prediction.columns
        differs = prediction.tokens != canvas.sequences.gather(1, columns)
        changed = change.commits | (prediction.revisable & differs)
        considered = prediction.masked | prediction.revisable
        is_unsure = considered & (prediction.confidence < self.SURE)

        # Whether a token of their block has changed and one is unsure.
        block = canvas.block.gather(1, columns)
        is_same = block[:, :, None] == block[:, None, :]
        keeps_open = (is_same & torch.stack([changed, is_unsure])[:, :, None]).any(dim=3).all(dim=0)

        # `step_in_block` counts from the entry into the first open block.
        open_from = canvas.open_from[:, None]
        block_length = (canvas.block == open_from).sum(dim=1)
        may_stay = (canvas.step_in_block + 1 < block_length)[:, None] | (block != open_from)

        self.confidence.value = self.confidence.value.scatter(1, columns, prediction.confidence.float())
        return Change(tokens=prediction.tokens, commits=changed, pending=considered & keeps_open & may_stay)


def mix_embeddings(
    embeddings: torch.nn.Module, input_ids: torch.LongTensor, weights: torch.FloatTensor, mask_token_id: int
) -> torch.Tensor:
    """Mixes the embedding of each token, by its weight, with the mask token's, and keeps their weighted mean norm.

    `input_ids` and `weights` are `(rows, length)`; where a weight is 1, the embedding is the token's
    (https://huggingface.co/papers/2604.08302).
    """
    of_tokens = embeddings(input_ids)
    of_mask = embeddings(torch.full_like(input_ids[:1, :1], mask_token_id))
    weights = weights[..., None].to(of_tokens.device)
    rest = 1 - weights

    mixed = weights * of_tokens + rest * of_mask
    length = weights * of_tokens.norm(dim=-1, keepdim=True) + rest * of_mask.norm(dim=-1, keepdim=True)
    mixed = mixed * (length / (mixed.norm(dim=-1, keepdim=True) + 1e-6))
    return torch.where(weights < 1, mixed.to(of_tokens.dtype), of_tokens)
