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
    exact_model,
    left_padded,
    make_dream,
    make_llada,
    make_sdar,
)


PROMPTS = [[2, 3], [4, 5, 6, 7, 8], [9]]
SETTINGS = {"max_new_tokens": 16, "block_length": 4, "confidence_threshold": 0.5, "stop_at_eos": False}


@torch.no_grad()
def naive_suffix(model, prompt, suffix_length):
    """One row: the tokens, and the passes."""
    row, nfe = prompt + [MASK] * 16, 0
    for start in range(len(prompt), len(row), 4):
        while MASK in row[start : start + 4]:
            probs = model(torch.tensor([row[: start + 4 + suffix_length]])).logits[0].softmax(-1)
            nfe += 1
            probs[:, MASK] = 0
            masked = [i for i in range(start, start + 4) if row[i] == MASK]
            best = max(masked, key=lambda i: probs[i].max().item())
            for i in masked:
                if i == best or probs[i].max() >= 0.5:
                    row[i] = probs[i].argmax().item()
    return row[len(prompt) :], nfe


@pytest.mark.parametrize("make", [make_llada, make_dream])
def test_rows_of_a_batch_equal_the_naive_loop(make):
    model = exact_model(make)
    ids, attention_mask = left_padded(PROMPTS)
    whole = model.generate(ids, attention_mask=attention_mask, **SETTINGS)
    for suffix_length in (0, 3, 16):
        settings = SETTINGS | {"suffix_length": suffix_length, "return_dict_in_generate": True}
        out = model.generate(ids, attention_mask=attention_mask, **settings)
        expected = [naive_suffix(model, prompt, suffix_length) for prompt in PROMPTS]
        assert out.sequences[:, ids.shape[1] :].tolist() == [tokens for tokens, _ in expected]
        assert out.nfe.tolist() == [nfe for _, nfe in expected]
        assert torch.equal(out.sequences, whole) == (suffix_length == 16)
        for cache in ("prefix", "dual"):
            rows = model.generate_many(
                PROMPTS, batch_size=2, cache_implementation=cache, cache_refresh_interval=1, **settings
            )
            assert [row.tokens.tolist() for row in rows] == [tokens for tokens, _ in expected]


@pytest.mark.parametrize(
    ("make", "one_layer", "change"),
    [
        (make_llada, {"n_layers": 1}, {"revocation_threshold": 0.9}),
        (make_dream, {"num_hidden_layers": 1}, {"max_active_blocks": 2, "editing_threshold": 0.3}),
    ],
)
def test_caches_and_revision_with_a_model_of_one_layer(make, one_layer, change):
    """There, a cache is exact."""
    settings = {
        "max_new_tokens": 12,
        "block_length": 4,
        "entropy_bound": 2.0,
        "stop_at_eos": False,
        "suffix_length": 3,
    }
    model, settings = make(**one_layer).double(), settings | change
    exact = [next(model.generate_many([prompt], **settings)) for prompt in PROMPTS]
    for cache in (None, "prefix", "dual"):
        rows = list(model.generate_many(PROMPTS, batch_size=2, cache_implementation=cache, **settings))
        assert [row.tokens.tolist() for row in rows] == [row.tokens.tolist() for row in exact]
        assert [row.nfe for row in rows] == [row.nfe for row in exact]


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
