# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""LLaDA2.2: the tokens of a block share experts. The oracle goes token by token."""

import json

import pytest
import torch
from transformers import AutoModelForMaskedLM

from hf_dparallel import LLaDA2Config
from hf_dparallel.models.llada2.modeling_llada2 import BlockRouter

from ..helpers import left_padded, make_llada2, make_trainer, refuses


PROMPTS = [[5, 9, 3], [7, 2, 8, 6], [4, 11, 12, 13, 14, 15, 16, 3, 2]]


def route(router, states, block_length, capacity):
    """Experts and weights of each token of one row, from the formula."""
    scores = torch.sigmoid(states @ router.weight.T)
    choice = scores + router.e_score_correction_bias
    chosen, weights = [], []
    for place in range(len(states)):
        start = place // block_length * block_length
        best = [max(row[expert] for row in choice[start : start + block_length]) for expert in range(choice.shape[1])]
        shared = sorted(range(len(best)), key=lambda expert: (-best[expert], expert))[:capacity]
        own = sorted(shared, key=lambda expert: (-choice[place, expert], expert))[: router.top_k]
        total = sum(scores[place, expert] for expert in own)
        chosen.append(own)
        weights.append([router.routed_scaling_factor * scores[place, expert] / total for expert in own])
    return torch.tensor(chosen), torch.tensor(weights)


@pytest.mark.parametrize("capacity", [2, 3, 8])
@pytest.mark.parametrize("length", [3, 4, 10])
def test_the_router(capacity, length):
    config = make_llada2(expert_capacity=capacity).config
    router = BlockRouter(config)
    torch.nn.init.normal_(router.weight)
    router.e_score_correction_bias.normal_()
    states = torch.randn(2, length, config.hidden_size)
    _, weights, chosen = router(states)
    for row, given in enumerate(states):
        expected = route(router, given, config.block_length, capacity)
        part = slice(row * length, (row + 1) * length)
        assert chosen[part].tolist() == expected[0].tolist()
        torch.testing.assert_close(weights[part], expected[1])


def test_ties_go_to_the_first_experts():
    router = BlockRouter(make_llada2(expert_capacity=3).config)
    torch.nn.init.zeros_(router.weight)
    router.e_score_correction_bias.zero_()
    assert router(torch.randn(1, 4, 32))[2].tolist() == [[0, 1]] * 4


@pytest.mark.parametrize("settings", [{}, {"entropy_threshold": 2.0}])
def test_batches_and_caches_change_nothing(settings):
    model = make_llada2(expert_capacity=3)
    settings = {"max_new_tokens": 10, "stop_at_eos": False} | settings
    rows = list(model.generate_many(PROMPTS, **settings))
    others = make_llada2().generate_many(PROMPTS, **settings)
    assert [row.tokens.tolist() for row in others] != [row.tokens.tolist() for row in rows]
    for prompt, row in zip(PROMPTS, rows, strict=True):
        for use in ({}, {"use_cache": False}):
            (alone,) = model.generate_many([prompt], **settings, **use)
            assert (alone.tokens.tolist(), alone.nfe) == (row.tokens.tolist(), row.nfe)


def test_files_and_training(tmp_path):
    model = make_llada2(expert_capacity=3)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    # Under the names of the published file.
    assert (config["expert_capacity"], config["block_size"]) == (3, 4)
    again = AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    ids = torch.tensor([PROMPTS[2]])
    assert torch.equal(again(ids).logits, model(ids).logits)
    assert LLaDA2Config(expert_capacity=48, block_size=16).block_length == 16
    assert make_trainer(tmp_path / "run", model, rows=2).train().global_step == 1


def test_what_does_not_go_is_refused():
    model = make_llada2(expert_capacity=3)
    ids, mask = left_padded([[5, 6], [7, 8, 9]])
    with pytest.raises(ValueError, match="multiple of 4 zeros"):
        model(ids, attention_mask=mask)
    with refuses("block_length", "chooses experts"):
        model.generate(ids[1:], max_new_tokens=8, block_length=8)
    model.config.delete_token_id, model.config.split_token_id = 60, 61
    with refuses("suppress_tokens", "split_token_id"):
        model.generate(ids[1:], max_new_tokens=8, suppress_tokens=[60])
    assert model.generate(ids[1:], max_new_tokens=8, suppress_tokens=[60, 61]).shape == (1, 11)
