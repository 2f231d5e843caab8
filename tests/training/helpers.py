# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The forward pass of training, written out."""

import torch


def all_logits(model, batch, ids):
    """The logits of all positions of a batch with other tokens; block-causal masks are written out by their rule."""
    if "attention_mask" in batch:
        return model(input_ids=ids, attention_mask=batch["attention_mask"]).logits
    num_noisy = batch["labels"].shape[1]
    noisy, clean = (batch["position_ids"][0] // 4).tensor_split([num_noisy])
    of_noisy = torch.cat([noisy[:, None] == noisy, noisy[:, None] > clean], dim=1)
    of_clean = torch.cat([torch.zeros(len(clean), num_noisy, dtype=torch.bool), clean[:, None] >= clean], dim=1)
    mask = torch.cat([of_noisy, of_clean])[None, None]
    return model(input_ids=ids, position_ids=batch["position_ids"], attention_mask=mask).logits
