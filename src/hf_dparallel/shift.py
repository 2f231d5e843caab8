# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Models that started from an autoregressive checkpoint predict a token one position before it."""

import torch


def shift_predictions(predictions: torch.Tensor, position_ids: torch.LongTensor | None) -> torch.Tensor:
    """Moves every prediction one token on. A first token keeps its own, as in the published samplers.

    Args:
        predictions (`torch.Tensor` of shape `(rows, length, size)`): logits, or the hidden states they come from.
        position_ids (`torch.LongTensor` of shape `(rows, length)`, *optional*): without them there is no padding.
    """
    shifted = torch.cat([predictions[:, :1], predictions[:, :-1]], dim=1)
    if position_ids is None:
        return shifted
    # With padding on the left the first token is not the first column.
    return torch.where((position_ids == 0)[..., None], predictions, shifted)
