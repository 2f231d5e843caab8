# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Where the masks of a forward pass are, for the adapters that act on them: each thread has a pass of its own."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class GatedPass(threading.local):
    """The forward pass that a thread runs. Threads that share a model have one each."""

    # Whether it is inside of [`acting_at`], and 1 at its masks, `(rows, length, 1)`; `None` without any.
    is_gated = False
    is_mask: torch.Tensor | None = None


PASS = GatedPass()


@contextmanager
def acting_at(is_mask: torch.BoolTensor | None) -> Iterator[None]:
    """Has activated adapters act at these places of the forward passes inside, `(rows, length)`; `None` for nowhere.

    The adapters are those of a model that [`~gate.gate_adapters`] has seen.
    """
    before = (PASS.is_gated, PASS.is_mask)
    PASS.is_gated = True
    PASS.is_mask = None if is_mask is None else is_mask[..., None]
    try:
        yield
    finally:
        PASS.is_gated, PASS.is_mask = before
