# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Prompts as callers give them, and what is warned about."""

import pytest
import torch
from transformers.utils import logging


PROMPT = torch.tensor([[2, 3, 4]])
SMALL = {"max_new_tokens": 8, "block_length": 4}


@pytest.fixture
def warnings_of(caplog):
    logging.warning_once.cache_clear()
    logging.enable_propagation()
    yield caplog
    logging.disable_propagation()


@pytest.mark.parametrize(
    ("prompts", "warning", "is_given"),
    [
        ([[1, 2], [3, 4]], "Pad on the left and pass the attention mask that the tokenizer returns", True),
        ([[2, 1], [3, 4]], "Pad on the left and pass the attention mask that the tokenizer returns", True),
        # What all prompts begin with is no padding.
        ([[1, 2], [1, 4]], "padding", False),
        ([[5] * 125], "are 133 tokens, more than the 128 that the model was trained for", True),
    ],
)
def test_what_is_warned_about(tiny_llada, warnings_of, prompts, warning, is_given):
    tiny_llada.generate(torch.tensor(prompts), **SMALL)
    assert (warning in warnings_of.text) == is_given


def test_input_types_of_callers(tiny_llada):
    expected = tiny_llada.generate(PROMPT, **SMALL)
    for arguments in (
        {"input_ids": PROMPT.int()},
        {"input_ids": PROMPT, "attention_mask": torch.ones(1, 3, dtype=torch.bool)},
        {"input_ids": PROMPT, "attention_mask": torch.ones(1, 3), "token_type_ids": torch.zeros(1, 3)},
        {"input_ids": PROMPT, "logits_processor": [lambda input_ids, scores: scores]},
        {"input_ids": PROMPT, "num_beams": 1, "repetition_penalty": 1.0, "use_cache": False},
        {"input_ids": PROMPT, "num_return_sequences": 1, "top_k": 0, "use_cache": True, "synced_gpus": False},
    ):
        assert torch.equal(tiny_llada.generate(**arguments, **SMALL), expected)
