# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
import math

import pytest
import torch

from hf_dparallel import entropy_from_logits
from hf_dparallel_rules import certainty
from hf_dparallel_rules.certainty import LikeliestTokens, measure_certainty


def naive_entropy(logits, temperature=1.0):
    probs = torch.softmax(logits.double() / temperature, dim=-1)
    return -(probs * torch.where(probs > 0, probs, 1.0).log()).sum(dim=-1)


@pytest.mark.parametrize("temperature", [0.3, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 1e4])
def test_entropy_matches_float64(temperature, scale):
    logits = torch.randn(5, 3, 97, generator=torch.Generator().manual_seed(0)) * scale
    entropy = entropy_from_logits(logits, temperature)
    assert entropy.shape == (5, 3)
    torch.testing.assert_close(entropy.double(), naive_entropy(logits, temperature), rtol=1e-5, atol=1e-5)


def test_entropy_of_known_distributions():
    certain = torch.tensor([200.0, 0.0, 0.0, 0.0])
    entropy = entropy_from_logits(torch.stack([torch.zeros(4), certain]))
    assert entropy.tolist() == pytest.approx([math.log(4), 0.0])
    assert math.copysign(1, entropy[1].item()) == 1


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_tokens_that_are_ruled_out_add_nothing(temperature):
    logits = torch.tensor([1.0, 2.0, -1.0])
    padded = torch.cat([logits, torch.full((4,), float("-inf"))]).requires_grad_()
    entropy = entropy_from_logits(padded, temperature)
    torch.testing.assert_close(entropy, entropy_from_logits(logits, temperature))

    entropy.backward()
    assert padded.grad[:3].abs().min() > 0
    assert padded.grad[3:].tolist() == [0.0] * 4


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_entropy_gradient_matches_float64(temperature):
    logits = torch.randn(4, 20, generator=torch.Generator().manual_seed(1)) * 3
    single, double = logits.clone().requires_grad_(), logits.double().requires_grad_()
    entropy_from_logits(single, temperature).sum().backward()
    naive_entropy(double, temperature).sum().backward()
    torch.testing.assert_close(single.grad.double(), double.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_float32_whatever_the_dtype(dtype):
    logits = (torch.randn(6, 50, generator=torch.Generator().manual_seed(2)) * 2).to(dtype)
    for measure in (entropy_from_logits, lambda x: entropy_from_logits(x, 0.7)):
        assert measure(logits).dtype == torch.float32
        # They are measured of the rounded logits: nothing else is lost.
        torch.testing.assert_close(measure(logits), measure(logits.float()), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("tokens", [None, torch.tensor([[5, 0, 3], [2, 2, 4]])])
def test_many_positions_are_measured_in_groups(monkeypatch, tokens):
    logits = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0)) * 3
    whole = vars(measure_certainty(logits, 6, tokens))
    monkeypatch.setattr(certainty, "_CHUNK_NUMEL_CPU", 14)
    parts = vars(measure_certainty(logits, 6, tokens))
    for name in ("tokens", "confidence", "entropy"):
        assert torch.equal(parts[name], whole[name])
    if tokens is not None:
        expected = logits.softmax(-1).gather(-1, tokens[..., None])[..., 0]
        torch.testing.assert_close(whole["confidence"], expected)


def test_the_likeliest_tokens_are_measured_when_it_is_asked_for(monkeypatch):
    logits = torch.randn(3, 2, 9)
    logits[0, 0, 4] = 99.0
    expected = measure_certainty(logits, 4)
    calls = []
    measure = certainty.measure_certainty
    monkeypatch.setattr(certainty, "measure_certainty", lambda *given: calls.append(given) or measure(*given))
    prediction = LikeliestTokens(logits, 4)
    assert torch.equal(prediction.tokens, expected.tokens) and not prediction.is_nan.any() and not calls
    assert torch.equal(prediction.entropy, expected.entropy) and torch.equal(
        prediction.confidence, expected.confidence
    )
    assert len(calls) == 1 and not hasattr(prediction, "certainty")


@pytest.mark.parametrize("bad", [float("nan"), -float("inf"), float("inf")])
def test_the_likeliest_tokens_are_none_where_no_score_is_the_largest(bad):
    logits = torch.randn(2, 3, 9)
    logits[1, 2] = bad
    of_certainty = measure_certainty(logits, 4)
    expected = [[False] * 3, [False, False, True]]
    assert LikeliestTokens(logits, 4).is_nan.tolist() == of_certainty.is_nan.tolist() == expected
