# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What is kept of the predictions of a decode."""

from types import SimpleNamespace

import torch

from hf_dparallel.generation.history import HISTORIES, CertaintyHistory


def test_a_prompt_without_masks_has_its_empty_certainty_where_the_model_is():
    """The rows of a batch are put together, which fails between two devices."""
    canvas = SimpleNamespace(masked=torch.zeros(1, 4, dtype=torch.bool, device="meta"))
    empty = CertaintyHistory(canvas).pop(0)
    assert set(empty) == set(HISTORIES)
    assert {tensor.device.type for tensor in empty.values()} == {"meta"}
