# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Verified commits (WINO, https://huggingface.co/papers/2507.18578), beside the recorded runs and the naive loop."""

import itertools

import pytest
import torch

from hf_dparallel import enable_diffusion_generation

from ..helpers import MASK, RemoteCodeConfig, RemoteCodeModel, make_dream, make_llada


# A decode without end would wait for a long time.
pytestmark = pytest.mark.timeout(120)


def test_decoding_ends_whatever_the_model_says(monkeypatch):
    """Every pass is sure of other tokens than the pass before, and finds all that is decided impossible."""
    model, passes = make_llada(), itertools.count()

    def score(inputs, where, **kwargs):
        step = next(passes)
        torch.manual_seed(step)
        logits = torch.randn(*where.shape, 64) * (step % 3)
        logits[..., 2 + step % 5] += 4 * torch.rand(where.shape)
        return logits

    monkeypatch.setattr(model, "score", score)
    revised = 0
    for block_length, max_active_blocks, seed in itertools.product([5, 24], [1, 4], range(3)):
        (row,) = model.generate_many(
            [[2, 3 + seed]],
            max_new_tokens=24,
            block_length=block_length,
            max_active_blocks=max_active_blocks,
            confidence_threshold=0.1,
            revocation_threshold=1.0,
            stop_at_eos=False,
        )
        assert row.nfe <= 24 and (row.tokens != MASK).all()
        revised += row.num_revisions
    assert revised > 100


def test_the_first_token_is_verified_without_being_seen():
    """Dream predicts it at its own place; in one layer no other place has heard of it."""
    model, differences = make_dream(num_hidden_layers=1).double(), []
    score = model.score

    def compare(inputs, where, *args, **kwargs):
        of_first = [index for index in where[0].tolist() if index >= 8 and inputs["position_ids"][0, index] == 0]
        if of_first:
            changed = inputs["input_ids"].clone()
            changed[0, 0] = (changed[0, 0] + 1) % 60
            logits = [
                score(inputs | {"input_ids": ids}, torch.tensor([of_first])) for ids in (changed, inputs["input_ids"])
            ]
            differences.append((logits[0] - logits[1]).abs().max().item())
        return score(inputs, where, *args, **kwargs)

    model.score = compare
    prompt = torch.tensor([[*[MASK] * 7, 6]])
    model.generate(prompt, max_new_tokens=0, block_length=8, entropy_bound=0.1, revocation_threshold=1e-9)
    assert differences and max(differences) < 1e-9


def test_a_class_that_ignores_such_masks_is_found_out():
    class Deaf(RemoteCodeModel):
        def forward(self, input_ids, attention_mask=None, position_ids=None):
            seen = attention_mask if attention_mask is None or attention_mask.dim() == 2 else None
            return super().forward(input_ids, seen, position_ids)

    assert not enable_diffusion_generation(Deaf(RemoteCodeConfig()), MASK).takes_visibility
