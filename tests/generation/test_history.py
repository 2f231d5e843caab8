# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What is kept of the predictions of a decode."""

import pytest
import torch

from ..helpers import MASK, exact_model, left_padded, make_dream, make_llada


@pytest.mark.parametrize("window", [{"cache_implementation": "dual"}, {"suffix_length": 2}])
def test_where_a_pass_is_cut_off_only_the_open_blocks_are_predicted(window):
    model, settings = exact_model(make_llada), {"max_new_tokens": 12, "block_length": 4, "entropy_threshold": 0.0}
    settings |= {"stop_at_eos": False, "return_dict_in_generate": True, **window}
    out = model.generate(torch.tensor([[2, 3, 4]]), output_certainty=True, **settings)
    assert torch.equal(out.sequences, model.generate(torch.tensor([[2, 3, 4]]), **settings).sequences)
    blocks = [set((line.isnan().logical_not().nonzero().flatten() // 4).tolist()) for line in out.entropies[0]]
    assert blocks == [{0}] * 4 + [{1}] * 4 + [{2}] * 4


def test_the_mask_token_is_no_candidate():
    model = exact_model(make_llada)
    with torch.no_grad():
        model.lm_head.weight[MASK] *= 50
    settings = {"max_new_tokens": 8, "block_length": 8, "output_certainty": True, "return_dict_in_generate": True}
    out = model.generate(torch.tensor([[2, 3]]), **settings)
    assert out.entropies.isinf().any() and not (out.candidates == MASK).any()


def test_a_small_vocabulary_has_fewer_candidates():
    model = make_llada(vocab_size=4, mask_token_id=3, eos_token_id=0, pad_token_id=0)
    ids = torch.tensor([[1, 3, 2]])
    out = model.generate(ids, max_new_tokens=0, output_certainty=True, return_dict_in_generate=True)
    assert out.candidates.shape == out.candidate_probabilities.shape == (1, 1, 3, 5)
    assert sorted(out.candidates[0, 0, 1].tolist()) == [-1, -1, 0, 1, 2]
    assert out.candidate_probabilities[0, 0, 1].isnan().tolist() == [False] * 3 + [True] * 2


def test_of_masks_inside_prompts(tiny_llada):
    ids, attention_mask = left_padded([[2, 3, MASK, 4, MASK], [MASK, 5]])
    out = tiny_llada.generate(
        ids, attention_mask=attention_mask, max_new_tokens=0, output_certainty=True, return_dict_in_generate=True
    )
    assert out.nfe.tolist() == [2, 1] and out.entropies.shape == (2, 2, 5)
    assert torch.equal(~out.entropies[:, 0].isnan(), ids == MASK)
    assert out.entropies[1, 1].isnan().all()
    assert out.candidates.shape == out.candidate_probabilities.shape == (2, 2, 5, 5)
    assert torch.equal(out.candidates[:, 0, :, 0] != -1, ids == MASK)


def test_a_pass_tells_the_entropies_confidences_and_candidates_of_its_masks(tiny_llada):
    prompts, attention_mask = left_padded([[2, 3], [4, 5, 6]])
    kwargs = {"max_new_tokens": 16, "block_length": 8, "entropy_threshold": 1.0, "return_dict_in_generate": True}
    plain = tiny_llada.generate(prompts, attention_mask=attention_mask, **kwargs)
    out = tiny_llada.generate(prompts, attention_mask=attention_mask, output_certainty=True, **kwargs)
    assert torch.equal(out.sequences, plain.sequences) and torch.equal(out.nfe, plain.nfe)
    assert out.entropies.shape == out.confidences.shape == (2, int(out.nfe.max()), 16)
    seen, passes, steps = ~out.entropies.isnan(), torch.arange(int(out.nfe.max()))[:, None], out.commit_step[:, None]
    decided, is_over = (steps >= 0) & (steps < passes), passes >= out.nfe[:, None, None]
    assert not (seen & (decided | is_over)).any() and (seen | (steps < passes) | is_over).all()
    assert (out.candidates[~seen] == -1).all() and out.candidate_probabilities[~seen].isnan().all()
    with torch.no_grad():
        canvas = torch.cat([prompts, torch.full((2, 16), MASK)], dim=1)
        mask = torch.cat([attention_mask, torch.ones(2, 16, dtype=torch.long)], dim=1)
        p = tiny_llada(canvas, attention_mask=mask).logits[:, 3:].double().softmax(-1)
    close = {"atol": 1e-4, "rtol": 1e-4, "check_dtype": False}
    torch.testing.assert_close(out.entropies[:, 0], -(p * p.log()).sum(-1), **close)
    torch.testing.assert_close(out.confidences[:, 0], p.amax(-1), **close)
    p[..., MASK] = -1
    likeliest = p.topk(5)
    assert torch.equal(out.candidates[:, 0], likeliest.indices)
    torch.testing.assert_close(out.candidate_probabilities[:, 0], likeliest.values, **close)
    # What is committed is the first candidate of its pass.
    row, column = (out.commit_step >= 0).nonzero(as_tuple=True)
    assert torch.equal(out.candidates[row, out.commit_step[row, column], column, 0], out.sequences[row, 3 + column])


def test_certainty_is_told_of_every_mask_again():
    model = exact_model(make_dream)
    settings = {"max_new_tokens": 20, "block_length": 8, "entropy_bound": 2.0, "revocation_threshold": 0.9}
    settings |= {"stop_at_eos": False, "return_dict_in_generate": True}
    out = model.generate(torch.tensor([[2, 3]]), output_certainty=True, **settings)
    plain = model.generate(torch.tensor([[2, 3]]), **settings)
    assert torch.equal(out.sequences, plain.sequences) and out.nfe == plain.nfe
    predicted = ~out.entropies[0].isnan()
    # A mask is predicted until it is decided; one that is taken back is predicted again, at first by the next pass.
    changes = (predicted[1:] & ~predicted[:-1]).sum()
    assert changes == out.num_revisions
    last = predicted.int().flip(0).argmax(dim=0)
    assert (len(predicted) - 1 - last).tolist() == out.commit_step[0].tolist()
