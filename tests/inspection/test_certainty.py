# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The figures behind the pictures, each against a slow loop over rows, passes and tokens."""

import math

import pytest
import torch

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.generation.answerer import Answerer
from hf_dparallel.inspection.plots import mean_confidence

from ..helpers import make_llada, make_tokenizer


PROMPTS = [[2, 3], [4, 5, 6, 7], [8], [9, 10, 11], [30, 31]]
RECIPE = DiffusionGenerationConfig(max_new_tokens=16, block_length=8, entropy_threshold=1.0, eos_token_id=34)


@pytest.fixture(scope="module")
def out():
    return Answerer(make_llada(), make_tokenizer(), RECIPE, batch_size=2).with_(output_certainty=True).decode(PROMPTS)


def test_decode_is_that_of_each_prompt_alone(out):
    model = make_llada()
    for row, prompt in enumerate(PROMPTS):
        alone = model.generate(torch.tensor([prompt]), RECIPE, output_certainty=True, return_dict_in_generate=True)
        nfe = int(alone.nfe)
        assert out.nfe[row] == nfe and torch.equal(out.commit_step[row], alone.commit_step[0])
        assert out.sequences[row, 4 - len(prompt) :].tolist() == alone.sequences[0].tolist()
        assert torch.equal(out.candidates[row, :nfe], alone.candidates[0])
        torch.testing.assert_close(
            out.confidences[row, :nfe], alone.confidences[0], atol=1e-5, rtol=1e-4, equal_nan=True
        )
        assert out.confidences[row, nfe:].isnan().all() and (out.candidates[row, nfe:] == -1).all()
    assert len({int(nfe) for nfe in out.nfe}) > 1


def test_seed_draws_are_those_of_a_row_whatever_the_batch():
    recipe = RECIPE.updated(temperature=1.0)
    model, tokenizer = make_llada(), make_tokenizer()
    by_two, by_five = (Answerer(model, tokenizer, recipe, size, seed=3).decode(PROMPTS) for size in (2, 5))
    other = Answerer(model, tokenizer, recipe, 5, seed=4).decode(PROMPTS)
    assert torch.equal(by_two.sequences, by_five.sequences) and not torch.equal(by_five.sequences, other.sequences)


def test_mean_confidence_keeps_the_last_value_of_a_decided_token():
    nan = torch.nan
    confidences = torch.tensor([[[0.2, 0.9], [0.6, nan], [nan, nan]], [[0.4, 0.5], [nan, nan], [nan, nan]]])
    expected = torch.tensor([[0.3, 0.7], [0.5, 0.7], [0.5, 0.7], [0.5, 0.7]])
    torch.testing.assert_close(mean_confidence(confidences, num_passes=4), expected)


def test_mean_confidence_of_a_decode(out):
    measured = mean_confidence(out.confidences, num_passes=6)
    for step in range(6):
        for token in range(16):
            values = []
            for row in range(len(PROMPTS)):
                seen = [float(out.confidences[row, s, token]) for s in range(min(step + 1, out.confidences.shape[1]))]
                values.append([value for value in seen if not math.isnan(value)][-1])
            assert float(measured[step, token]) == pytest.approx(sum(values) / len(values), abs=1e-6)
