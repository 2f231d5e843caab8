# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A suffix window: the same as decoding a canvas that ends so many masks behind the open block."""

import pytest
import torch
from transformers import CompileConfig

from hf_dparallel import enable_diffusion_generation

from ..helpers import (
    MASK,
    RemoteCodeConfig,
    RemoteCodeModel,
    left_padded,
    make_dream,
    make_llada,
    make_sdar,
)


PROMPTS = [[2, 3], [4, 5, 6, 7, 8], [9]]
SETTINGS = {"max_new_tokens": 16, "block_length": 4, "confidence_threshold": 0.5, "stop_at_eos": False}


def test_certainty_is_told_of_the_open_blocks():
    settings = SETTINGS | {"suffix_length": 2, "return_dict_in_generate": True}
    out = make_llada().generate(torch.tensor([PROMPTS[0]]), output_certainty=True, **settings)
    assert (~out.entropies[0, 0].isnan()).nonzero().flatten().tolist() == [0, 1, 2, 3]
    assert torch.equal(out.sequences, make_llada().generate(torch.tensor([PROMPTS[0]]), **settings).sequences)


def test_models_of_other_classes():
    foreign = enable_diffusion_generation(RemoteCodeModel(RemoteCodeConfig()), MASK, shift_logits=True)
    ids, attention_mask = left_padded(PROMPTS)
    inputs = {"input_ids": ids, "attention_mask": attention_mask, "suffix_length": 3, "pad_token_id": 0}
    assert torch.equal(foreign.generate(**inputs, **SETTINGS), make_dream().generate(**inputs, **SETTINGS))


def test_what_does_not_go_together():
    prompt = torch.tensor([PROMPTS[0]])
    with pytest.raises(ValueError, match="`suffix_length=3` does not go with `compile_config=CompileConfig"):
        make_llada().generate(prompt, suffix_length=3, compile_config=CompileConfig(), **SETTINGS)
    with pytest.raises(ValueError, match="is block-causal: it computes none of them anyway"):
        make_sdar().generate(prompt, suffix_length=3, **SETTINGS)
