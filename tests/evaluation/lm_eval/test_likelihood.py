# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The Monte Carlo bound of the log-likelihood, against sums over all masks."""

import itertools

import pytest
import torch

from hf_dparallel import enable_diffusion_generation
from hf_dparallel.evaluation.lm_eval.likelihood import (
    draw_masks,
    estimate_log_likelihood,
    masked_log_probabilities,
)

from ...helpers import RemoteCodeConfig, RemoteCodeModel, make_dream, make_llada, make_nemotron
from .helpers import make_lm


CONTEXT, ANSWER, MASK = [0, 9, 14], [5, 21, 33], 63


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def naive_score(model, masked) -> float:
    """Sum of the log-probabilities of the masked tokens, one forward pass for one answer."""
    ids = torch.tensor([CONTEXT + [MASK if hidden else token for token, hidden in zip(ANSWER, masked, strict=True)]])
    logits = model(input_ids=ids).logits[0, len(CONTEXT) :]
    scores = logits.log_softmax(-1)[range(len(ANSWER)), ANSWER]
    return scores[torch.tensor(masked)].sum().item()


def exact_bound(model) -> float:
    """The mean over the counts of masks of the mean over all choices of them."""
    length, total = len(ANSWER), 0.0
    for count in range(1, length + 1):
        chosen = itertools.combinations(range(length), count)
        choices = [[index in places for index in range(length)] for places in chosen]
        total += sum(naive_score(model, masked) for masked in choices) / len(choices) * length / count
    return total / length


@pytest.mark.parametrize("make", [make_llada, make_dream])
def test_the_estimate_is_the_bound(make):
    model = make()
    estimate = estimate_log_likelihood(model, CONTEXT, ANSWER, MASK, 1500, 500, generator())
    assert estimate == pytest.approx(exact_bound(model), rel=0.02)


def test_an_answer_is_in_the_open_block_of_a_model_with_a_causal_past():
    model = make_nemotron(block_length=3)
    assert estimate_log_likelihood(model, CONTEXT, ANSWER, MASK, 2, 2, generator()) < 0
    with pytest.raises(ValueError, match="4 tokens. .* at most 3"):
        estimate_log_likelihood(model, CONTEXT, [*ANSWER, 7], MASK, 2, 2, generator())


def test_one_token_needs_one_sample():
    model = make_llada()
    ids = torch.tensor([[*CONTEXT, MASK]])
    exact = model(input_ids=ids).logits[0, -1].log_softmax(-1)[ANSWER[0]].item()
    passes = []
    model.register_forward_hook(lambda *args: passes.append(len(args[1]) or args))
    assert estimate_log_likelihood(model, CONTEXT, ANSWER[:1], MASK, 128, 16, generator()) == pytest.approx(exact)
    assert len(passes) == 1


def test_the_batch_size_does_not_change_the_estimate():
    model = make_llada()

    def estimate(batch_size, seed=3):
        return estimate_log_likelihood(model, CONTEXT, ANSWER, MASK, 32, batch_size, generator(seed))

    assert [estimate(1), estimate(32)] == pytest.approx([estimate(5)] * 2, rel=1e-6)
    assert estimate(5, seed=4) != pytest.approx(estimate(5))


@pytest.mark.parametrize(("length", "num_samples"), [(5, 10), (7, 7), (3, 128), (40, 8)])
def test_the_counts_are_spread_evenly_from_a_random_start(length, num_samples):
    for seed in range(5):
        counts = draw_masks(length, num_samples, generator(seed)).sum(dim=1).tolist()
        assert len(counts) == num_samples and set(counts) <= set(range(1, length + 1))
        often = [counts.count(count) for count in range(1, length + 1)]
        assert max(often) - min(often) <= 1
    assert len({draw_masks(40, 4, generator(seed))[0].sum().item() for seed in range(20)}) > 10


def test_each_token_is_masked_as_often():
    masked = draw_masks(5, 3000, generator())
    assert masked.float().mean(dim=0).tolist() == pytest.approx([0.6] * 5, abs=0.04)


def test_models_of_other_classes_are_scored_alike():
    masked = torch.tensor([[True, False, True], [False, True, False]])
    other = enable_diffusion_generation(RemoteCodeModel(RemoteCodeConfig()), MASK, shift_logits=True)
    native = masked_log_probabilities(make_dream(), CONTEXT, ANSWER, masked, MASK)
    assert masked_log_probabilities(other, CONTEXT, ANSWER, masked, MASK) == pytest.approx(native)


def request(kind, *arguments):
    from lm_eval.api.instance import Instance

    return Instance(kind, {}, arguments, 0, ("task", 0, 1))


def test_requests_are_scored_and_the_same_again():
    pairs = [("3 4 5", " 6 7"), ("", "9 9 9"), ("12", " 13")]
    requests = [request("loglikelihood", *pair) for pair in pairs]
    first = make_lm(mc_num=16, batch_size=4).loglikelihood(requests)
    again = make_lm(mc_num=16, batch_size=7).loglikelihood(requests[::-1])[::-1]
    assert [score for score, _ in first] == pytest.approx([score for score, _ in again], rel=1e-5)
    assert all(score < 0 and is_greedy is False for score, is_greedy in first)
    other_seed = make_lm(mc_num=16, batch_size=4, seed=1).loglikelihood(requests)
    assert first != other_seed


def test_an_answer_without_tokens_is_refused_before_any_is_scored():
    lm = make_lm(mc_num=2)
    # The tokenizer of this test cuts words at spaces, so this answer is part of the prompt's last token.
    requests = [request("loglikelihood", "3 4", " 5"), request("loglikelihood", "3 4", "5")]
    with pytest.raises(ValueError, match="answer '5' .*target_delimiter"):
        lm.loglikelihood(requests)


def test_a_mask_in_a_request_is_refused():
    """As an answer it would be right wherever it is masked, and as a prompt one more hole."""
    for pair in (("3 <mask>", " 5"), ("3 4", " 5 <mask>")):
        with pytest.raises(ValueError, match=r"contains the mask token \(63\).*3 "):
            make_lm().loglikelihood([request("loglikelihood", *pair)])


def test_whole_texts_are_not_scored():
    with pytest.raises(NotImplementedError, match="`task` measures the perplexity of texts"):
        make_lm().loglikelihood_rolling([request("loglikelihood_rolling", "1 2")])
