# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Prompts that cannot be decoded are refused before any work is done."""

import pytest
import torch
from transformers.utils import logging

from ..helpers import make_llada


PROMPT = torch.tensor([[2, 3, 4]])
logger_once = logging.warning_once
SMALL = {"max_new_tokens": 8, "block_length": 4}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"`input_ids` must be a tensor of shape \(batch_size, prompt_length\), got None. Pass `\*\*inputs`"),
        ({"input_ids": torch.tensor([2, 3])}, r"`input_ids` must be a tensor of shape .* got \(2,\)"),
        ({"input_ids": [[2, 3]]}, r"`input_ids` must be a tensor of shape .*return_tensors='pt'"),
        ({"input_ids": PROMPT, "inputs": PROMPT}, r"`inputs` and `input_ids` are the same argument, got both"),
        ({"input_ids": PROMPT, "attention_mask": [[1, 1, 1]]}, r"`attention_mask` must be a tensor of the shape"),
        ({"input_ids": PROMPT, "token_type_ids": torch.ones(1, 3)}, r"`token_type_ids` must be all 0"),
        ({"input_ids": PROMPT, "generator": 5}, r"`generator` must be one torch.Generator or one per row, got 5"),
        (
            {"input_ids": PROMPT, "generator": [5]},
            r"`generator` must be one torch.Generator or one per row, got \[5\]",
        ),
        ({"input_ids": PROMPT, "streamer": object()}, r"`streamer` must have the methods `put` and `end`, .* object"),
        ({"input_ids": PROMPT, "output_certainty": True}, r"`output_certainty=True` needs `return_dict_in_generate"),
        ({"input_ids": torch.zeros(1, 0, dtype=torch.long)}, r"`input_ids` is empty, of shape \(1, 0\)"),
        (
            {"input_ids": torch.tensor([[2, 64]])},
            r"`input_ids\[0, 1\]` is 64, outside the model's vocabulary of 64 tokens. Use the tokenizer that belongs",
        ),
        ({"input_ids": torch.tensor([[2, -1]])}, r"`input_ids\[0, 1\]` is -1, outside"),
        (
            {
                "input_ids": torch.tensor([[2, 3, 1], [2, 3, 4]]),
                "attention_mask": torch.tensor([[1, 1, 0], [1, 1, 1]]),
            },
            r"Row 0 is padded on the right .* Tokenize with `padding_side='left'`.",
        ),
        (
            {"input_ids": torch.tensor([[2, 3], [1, 1]]), "attention_mask": torch.tensor([[1, 1], [0, 0]])},
            r"`attention_mask` is 0 everywhere in row 1: that prompt is empty",
        ),
        (
            {"input_ids": PROMPT, "attention_mask": torch.ones(1, 2)},
            r"`attention_mask` must be a tensor of the shape of `input_ids`, \(1, 3\), got \(1, 2\)",
        ),
        (
            {"input_ids": torch.tensor([[2, 63, 4]])},
            r"`input_ids` contains the mask token \(63\) in row 0, and 8 new tokens .* Set `max_new_tokens=0`",
        ),
        ({"input_ids": PROMPT.bool()}, r"`input_ids` must be token ids \(integers\), got torch.bool"),
        ({"input_ids": PROMPT, "mask_token_id": 99}, r"`mask_token_id=99` is outside the model's vocabulary of 64"),
        ({"input_ids": PROMPT, "eos_token_id": [1, 63]}, r"`mask_token_id=63` is the end or padding token, too"),
        ({"input_ids": PROMPT, "pad_token_id": 63}, r"`mask_token_id=63` is the end or padding token, too"),
        ({"input_ids": PROMPT, "eos_token_id": 10**30}, r"`eos_token_id=10{30}` is outside the model's vocabulary"),
        ({"input_ids": PROMPT, "suppress_tokens": [64]}, r"`suppress_tokens` or `bad_words_ids=64` is outside"),
        ({"input_ids": PROMPT, "bad_words_ids": [[-1]]}, r"`suppress_tokens` or `bad_words_ids=-1` is outside"),
        (
            {"input_ids": PROMPT, "suppress_tokens": list(range(60)), "bad_words_ids": [[60], [61], [62]]},
            r"`suppress_tokens` and `bad_words_ids` leave no token to decode",
        ),
        ({"input_ids": PROMPT, "min_new_tokens": 9}, r"`min_new_tokens=9` is more than `max_new_tokens=8`"),
        ({"input_ids": PROMPT, "generator": [torch.Generator()] * 2}, r"one per row, got 2 for 1 rows"),
        ({"input_ids": PROMPT, "stop_strings": ["a"]}, r"`stop_strings=\['a'\]` needs the tokenizer"),
        ({"input_ids": PROMPT, "attention_masks": PROMPT}, r"Unknown generation setting\(s\): attention_masks"),
    ],
)
def test_bad_input(tiny_llada, arguments, message):
    with pytest.raises(ValueError, match=message):
        tiny_llada.generate(**arguments, **SMALL)


def test_no_mask_token():
    model = make_llada(mask_token_id=None)
    with pytest.raises(ValueError, match="`mask_token_id` must be set.*Pass `mask_token_id=` to `generate`"):
        model.generate(PROMPT, **SMALL)
    assert model.generate(PROMPT, mask_token_id=63, **SMALL).shape == (1, 11)


def test_nan_logits_name_the_step_and_the_row():
    model = make_llada()
    calls = []

    def spoil(module, args, output):
        calls.append(len(output))
        if len(calls) == 3:
            output[1] = torch.nan
        return output

    model.lm_head.register_forward_hook(spoil)
    with pytest.raises(FloatingPointError, match=r"logits of the model are NaN at step 2 of row 1. Check the weights"):
        model.generate(torch.tensor([[2, 3], [4, 5]]), stop_at_eos=False, **SMALL)


@pytest.fixture
def warnings_of(caplog):
    logging.enable_propagation()
    yield caplog
    logging.disable_propagation()


@pytest.mark.parametrize("prompts", [[[1, 2], [3, 4]], [[2, 1], [3, 4]]])
def test_padding_without_attention_mask_is_warned_about(tiny_llada, warnings_of, prompts):
    logger_once.cache_clear()
    tiny_llada.generate(torch.tensor(prompts), **SMALL)
    assert "Pad on the left and pass the attention mask that the tokenizer returns" in warnings_of.text


def test_a_token_that_all_prompts_begin_with_is_no_padding(tiny_llada, warnings_of):
    logger_once.cache_clear()
    tiny_llada.generate(torch.tensor([[1, 2], [1, 4]]), **SMALL)
    assert "padding" not in warnings_of.text


def test_too_long_a_sequence_is_warned_about(tiny_llada, warnings_of):
    logger_once.cache_clear()
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
