# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Prompts as callers give them, and what is warned about."""

import torch
from transformers.utils import logging


PROMPT = torch.tensor([[2, 3, 4]])
SMALL = {"max_new_tokens": 8, "block_length": 4}


def test_padding_without_a_mask_is_warned_about(tiny_llada, caplog):
    logging.warning_once.cache_clear()
    logging.enable_propagation()
    tiny_llada.generate(torch.tensor([[1, 2], [3, 4]]), **SMALL)
    logging.disable_propagation()
    assert "passing in an `attention_mask`" in caplog.text


def test_input_types_of_callers(tiny_llada):
    expected = tiny_llada.generate(PROMPT, **SMALL)
    for arguments in (
        {"input_ids": PROMPT.int()},
        {"input_ids": PROMPT, "attention_mask": torch.ones(1, 3, dtype=torch.bool)},
        {"input_ids": PROMPT, "attention_mask": torch.ones(1, 3), "token_type_ids": torch.zeros(1, 3)},
        {"input_ids": PROMPT, "logits_processor": [lambda input_ids, scores: scores]},
        {"input_ids": PROMPT, "num_beams": 1, "repetition_penalty": 1.0, "use_cache": False},
        {"input_ids": PROMPT, "num_return_sequences": 1, "top_k": 0, "use_cache": True},
    ):
        assert torch.equal(tiny_llada.generate(**arguments, **SMALL), expected)
