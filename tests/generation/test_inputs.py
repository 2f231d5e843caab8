# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Prompts that cannot be decoded are refused before any work is done."""

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


@pytest.mark.parametrize("prompts", [[[1, 2], [3, 4]], [[2, 1], [3, 4]]])
def test_padding_without_attention_mask_is_warned_about(tiny_llada, warnings_of, prompts):
    tiny_llada.generate(torch.tensor(prompts), **SMALL)
    assert "Pad on the left and pass the attention mask that the tokenizer returns" in warnings_of.text


def test_a_token_that_all_prompts_begin_with_is_no_padding(tiny_llada, warnings_of):
    tiny_llada.generate(torch.tensor([[1, 2], [1, 4]]), **SMALL)
    assert "padding" not in warnings_of.text


def test_too_long_a_sequence_is_warned_about(tiny_llada, warnings_of):
    tiny_llada.generate(torch.full((1, 125), 5), **SMALL)
    assert "are 133 tokens, more than the 128 that the model was trained for" in warnings_of.text


def test_input_types_of_callers(tiny_llada):
    expected = tiny_llada.generate(PROMPT, **SMALL)
    for arguments in (
        {"input_ids": PROMPT.int()},
        {"input_ids": PROMPT, "attention_mask": torch.ones(1, 3, dtype=torch.bool)},
        {"input_ids": PROMPT, "attention_mask": torch.ones(1, 3), "token_type_ids": torch.zeros(1, 3)},
        {"input_ids": PROMPT, "logits_processor": [lambda input_ids, scores: scores]},
        {"input_ids": PROMPT, "num_beams": 1, "repetition_penalty": 1.0, "use_cache": False},
    ):
        assert torch.equal(tiny_llada.generate(**arguments, **SMALL), expected)
