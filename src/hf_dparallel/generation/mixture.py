# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What soft decoding feeds to the model: mixtures of tokens and the mask token."""

import torch


def mix_embeddings(
    embeddings: torch.nn.Module, input_ids: torch.LongTensor, weights: torch.FloatTensor, mask_token_id: int
) -> torch.Tensor:
    """Mixtures of the embedding of each token and that of the mask token, as long as these are on the average.

    Args:
        embeddings (`torch.nn.Module`): of the model.
        input_ids (`torch.LongTensor` of shape `(rows, length)`): the tokens.
        weights (`torch.FloatTensor` of shape `(rows, length)`): the share of the token; where it is 1, the embedding
            is the token's.
        mask_token_id (`int`): the mask token.

    Returns:
        `torch.Tensor` of shape `(rows, length, hidden_size)`, as in DMax (https://huggingface.co/papers/2604.08302).
    """
    of_tokens, of_mask = embeddings(input_ids), embeddings(torch.full_like(input_ids[:1, :1], mask_token_id))
    weights = weights[..., None].to(of_tokens.device)
    mixed = weights * of_tokens + (1 - weights) * of_mask
    length = weights * of_tokens.norm(dim=-1, keepdim=True) + (1 - weights) * of_mask.norm(dim=-1, keepdim=True)
    mixed = mixed * (length / (mixed.norm(dim=-1, keepdim=True) + 1e-6))
    return torch.where(weights < 1, mixed.to(of_tokens.dtype), of_tokens)
