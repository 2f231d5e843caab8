# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The figures behind the pictures, each against a slow loop over rows, passes and tokens."""

import math

import pytest
import torch
from datasets import Dataset

from hf_dparallel import DiffusionGenerationConfig, numeric_answer_reward
from hf_dparallel.generation.answerer import Answerer
from hf_dparallel.inspection.certainty import (
    answer_confidence_and_accuracy,
    committed_confidence,
    committed_tokens,
    mean_confidence,
    prediction_reliability,
    token_convergence,
)

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


def test_committed_tokens_and_their_confidence(out):
    tokens, confidence = committed_tokens(out), committed_confidence(out)
    assert (tokens == -1).any(), "an answer has to end early for this test to mean something"
    for row in range(len(PROMPTS)):
        at_commit = []
        for column, step in enumerate(out.commit_step[row].tolist()):
            assert tokens[row, column] == (out.sequences[row, 4 + column] if step >= 0 else -1)
            if step >= 0:
                at_commit.append(float(out.confidences[row, step, column]))
        assert float(confidence[row]) == pytest.approx(sum(at_commit) / len(at_commit), abs=1e-6)


@pytest.mark.parametrize("passes", [None, [0], [1, 3]])
@pytest.mark.parametrize("with_reference", [False, True])
def test_reliability_counts_every_prediction_once(out, passes, with_reference):
    reference = None
    if with_reference:
        reference = torch.randint(-1, 62, (len(PROMPTS), 16), generator=torch.Generator().manual_seed(0))
    measured = prediction_reliability(out, reference, passes, num_bins=5)
    bins = [[] for _ in range(5)]
    for row in range(len(PROMPTS)):
        for step in range(out.candidates.shape[1]) if passes is None else passes:
            for column in range(16):
                confidence = float(out.candidate_probabilities[row, step, column, 0])
                right = committed_tokens(out)[row, column] if reference is None else reference[row, column]
                if math.isnan(confidence) or right == -1:
                    continue
                is_right = int(out.candidates[row, step, column, 0] == right)
                bins[min(int(confidence * 5), 4)].append((confidence, is_right))
    assert sum(map(len, bins)) == measured.count.sum() > 0
    for index, predictions in enumerate(bins):
        assert measured.count[index] == len(predictions)
        if predictions:
            confidence, is_right = (sum(values) / len(predictions) for values in zip(*predictions, strict=True))
            assert float(measured.confidence[index]) == pytest.approx(confidence, abs=1e-5)
            assert float(measured.accuracy[index]) == pytest.approx(is_right, abs=1e-5)
        else:
            assert measured.confidence[index].isnan() and measured.accuracy[index].isnan()


def test_reliability_of_passes_that_there_were_not(out):
    last = out.candidates.shape[1] - 1
    with pytest.raises(ValueError, match=rf"`passes` must be between 0 and {last}, the last pass .* got \[99\]"):
        prediction_reliability(out, passes=[0, 99])


@pytest.mark.parametrize("num_tokens", [1, 3, 99])
def test_convergence_of_single_tokens(out, num_tokens):
    for row in range(len(PROMPTS)):
        positions, confidences = token_convergence(out, row, num_tokens)
        decided = [column for column, step in enumerate(out.commit_step[row].tolist()) if step >= 0]
        assert positions == sorted(set(positions)) and set(positions) <= set(decided)
        assert len(positions) == min(num_tokens, len(decided)) and positions[0] == decided[0]
        assert num_tokens == 1 or positions[-1] == decided[-1]
        assert confidences.shape == (out.nfe[row], len(positions))
        for index, position in enumerate(positions):
            for step in range(int(out.nfe[row])):
                last = min(step, int(out.commit_step[row, position]))
                assert confidences[step, index] == out.confidences[row, last, position]


def test_accuracy_of_answers(out):
    tokenizer = make_tokenizer()
    texts = tokenizer.batch_decode([ids[ids >= 0] for ids in committed_tokens(out)], skip_special_tokens=True)
    answers = [text.split()[-1] if row % 2 else "-1" for row, text in enumerate(texts)]
    dataset = Dataset.from_dict({"prompt": ["?"] * len(PROMPTS), "answer": answers})
    point = answer_confidence_and_accuracy(out, tokenizer, dataset, numeric_answer_reward)
    assert point.pop("accuracy_interval") == pytest.approx([0.118, 0.769], abs=1e-3)
    assert point == {"confidence": pytest.approx(float(committed_confidence(out).mean())), "accuracy": 0.4}
