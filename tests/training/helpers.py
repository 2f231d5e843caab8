# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The forward pass and the loss of training, written out."""

import torch


def all_logits(model, batch):
    """Returns the logits of all positions of a batch; block-causal masks follow their rule."""
    if "attention_block" not in batch:
        return model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    noisy, clean = batch["attention_block"].tensor_split([batch["num_noisy"]], dim=1)
    query, key = noisy[:, :, None], noisy[:, None]
    of_noisy = torch.cat([query == key, query > clean[:, None]], dim=2)
    nothing = torch.zeros(*clean.shape, noisy.shape[1], dtype=torch.bool)
    of_clean = torch.cat([nothing, clean[:, :, None] >= clean[:, None]], dim=2)
    mask = torch.cat([of_noisy, of_clean], dim=1)[:, None].expand(len(batch["labels"]), -1, -1, -1)
    inputs = {"input_ids": batch["input_ids"], "position_ids": batch["position_ids"]}
    return model(**inputs, attention_mask=mask).logits


def naive_terms(logits, labels, temperature):
    """Computes Eqs. 5 to 7 as they are written, in float64: consistency and certainty of each row."""
    logits = logits.double()
    consistency, certainty = [], []
    for row_logits, row_labels in zip(logits, labels, strict=True):
        cross_entropies, entropies = [], []
        for token_logits, label in zip(row_logits, row_labels, strict=True):
            if label == -100:
                continue
            cross_entropies.append(-torch.log(torch.softmax(token_logits, dim=-1)[label]))
            if token_logits.argmax() == label:
                p = torch.softmax(token_logits / temperature, dim=-1)
                entropies.append(-(p * p.log()).sum())
        zero = logits.sum() * 0
        consistency.append(torch.stack(cross_entropies).mean() if cross_entropies else zero)
        certainty.append(torch.stack(entropies).mean() if entropies else zero)
    return torch.stack(consistency), torch.stack(certainty)
