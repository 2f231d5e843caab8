# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The rule of KLASS against a loop over positions; test_add_a_rule.py has the recorded runs of its published code."""

import pytest
import torch

from ..helpers import exact_model, left_padded, make_dream, make_llada


SETTINGS = {"kl_threshold": 0.5, "kl_confidence": 0.1, "kl_history_length": 2}
COMMON = {"max_new_tokens": 24, "block_length": 8, "stop_at_eos": False, "return_dict_in_generate": True}


@torch.no_grad()
def naive_klass(model, prompt, kl_threshold, kl_confidence, kl_history_length, max_new_tokens=24, block_length=8):
    """One row, one position at a time; a history for each block."""
    mask = model.config.mask_token_id
    row, nfe = prompt + [mask] * max_new_tokens, 0
    for start in range(len(prompt), len(row), block_length):
        previous, history = None, {place: [] for place in range(start, start + block_length)}
        while mask in row[start : start + block_length]:
            probs = model(torch.tensor([row])).logits[0].softmax(-1)
            nfe += 1
            candidates = {}
            for place in (place for place in history if row[place] == mask):
                if previous is not None:
                    before = previous[place]
                    change = probs[place] * ((probs[place] + 1e-12).log() - (before + 1e-12).log())
                    history[place].append(change.sum().item())
                token = max((t for t in range(probs.shape[-1]) if t != mask), key=lambda t: probs[place, t].item())
                last = history[place][-kl_history_length:]
                stable = len(last) == kl_history_length and max(last) < kl_threshold
                candidates[place] = (token, probs[place, token].item(), stable)
            ready = [place for place, (_, p, stable) in candidates.items() if stable and p > kl_confidence]
            for place in ready or [max(candidates, key=lambda place: candidates[place][1])]:
                row[place] = candidates[place][0]
            previous = probs
    return row[len(prompt) :], nfe


@pytest.mark.parametrize("make", [make_llada, make_dream])
def test_rows_of_a_batch_equal_the_naive_loop(make):
    model = exact_model(make)
    prompts = [[2, 3], [4, 5, 6, 7], [8]]
    ids, attention_mask = left_padded(prompts)
    out = model.generate(ids, attention_mask=attention_mask, pad_token_id=0, **SETTINGS, **COMMON)
    expected = [naive_klass(model, prompt, **SETTINGS) for prompt in prompts]
    assert out.sequences[:, ids.shape[1] :].tolist() == [tokens for tokens, _ in expected]
    assert out.nfe.tolist() == [nfe for _, nfe in expected]
    assert min(out.nfe.tolist()) < 24


def test_several_blocks_and_slots(tiny_llada):
    rows = list(tiny_llada.generate_many([[2, 3], [4], [5, 6, 7]], batch_size=2, **SETTINGS, max_new_tokens=16))
    alone = [
        tiny_llada.generate(torch.tensor([prompt]), **SETTINGS, max_new_tokens=16, return_dict_in_generate=True)
        for prompt in ([2, 3], [4], [5, 6, 7])
    ]
    assert [row.tokens.tolist() for row in rows] == [out.sequences[0, -16:].tolist() for out in alone]
    out = tiny_llada.generate(torch.tensor([[2, 3]]), max_active_blocks=2, **SETTINGS, **COMMON)
    assert not (out.sequences == 63).any()
