# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The rule of KLASS as rows leave and others come; test_add_a_rule.py has the recorded runs of its published code."""

import torch


SETTINGS = {"kl_threshold": 0.5, "kl_confidence": 0.1, "kl_history_length": 2}
COMMON = {"max_new_tokens": 24, "block_length": 8, "stop_at_eos": False, "return_dict_in_generate": True}


def test_several_blocks_and_slots(tiny_llada):
    rows = list(tiny_llada.generate_many([[2, 3], [4], [5, 6, 7]], batch_size=2, **SETTINGS, max_new_tokens=16))
    alone = [
        tiny_llada.generate(torch.tensor([prompt]), **SETTINGS, max_new_tokens=16, return_dict_in_generate=True)
        for prompt in ([2, 3], [4], [5, 6, 7])
    ]
    assert [row.tokens.tolist() for row in rows] == [out.sequences[0, -16:].tolist() for out in alone]
    out = tiny_llada.generate(torch.tensor([[2, 3]]), max_active_blocks=2, **SETTINGS, **COMMON)
    assert not (out.sequences == 63).any()
