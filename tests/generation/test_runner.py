# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""How a pass is run: the head, the masks, and keys and values from earlier passes."""

import torch


def test_the_head_runs_on_open_masks_only(tiny_llada):
    scored = []
    tiny_llada.lm_head.register_forward_hook(lambda module, args, output: scored.append(output.shape[1]))
    tiny_llada.generate(torch.tensor([[2, 3]]), max_new_tokens=16, block_length=8, stop_at_eos=False)
    assert scored == [8, 7, 6, 5, 4, 3, 2, 1] * 2
