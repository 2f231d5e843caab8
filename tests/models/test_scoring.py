# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Logits of some positions."""

import torch
from torch import nn

from hf_dparallel.models.scoring import LazyLogits


def test_lazy_logits_are_in_the_precision_that_is_asked_for():
    """A wrapped forward pass returns float32 states, which a head in half precision does not take."""
    head = nn.Linear(4, 6, bias=False).bfloat16()
    states, places = torch.randn(5, 4), torch.tensor([3, 1])
    with torch.no_grad():
        logits = LazyLogits(states, head).at(places, like=torch.empty(2, 6, dtype=torch.bfloat16))
        assert logits.dtype == torch.bfloat16 and torch.equal(logits, head(states[places].bfloat16()))
