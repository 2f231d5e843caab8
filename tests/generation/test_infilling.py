# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`max_new_tokens=0`: the mask tokens inside the prompts are decided in place."""

import pytest
import torch

from ..helpers import MASK, left_padded


def test_an_end_token_in_the_prompt_ends_nothing(tiny_llada):
    ids = torch.tensor([[2, 1, MASK, 1, MASK, 4]])
    out = tiny_llada.generate(ids, max_new_tokens=0, block_length=8)
    assert not (out == MASK).any() and torch.equal(out[ids != MASK], ids[ids != MASK])


def test_certainty_history(tiny_llada):
    ids, attention_mask = left_padded([[2, 3, MASK, 4, MASK], [MASK, 5]])
    out = tiny_llada.generate(
        ids, attention_mask=attention_mask, max_new_tokens=0, output_certainty=True, return_dict_in_generate=True
    )
    assert out.nfe.tolist() == [2, 1] and out.entropies.shape == (2, 2, 5)
    assert torch.equal(~out.entropies[:, 0].isnan(), ids == MASK)
    assert out.entropies[1, 1].isnan().all()
    assert out.candidates.shape == out.candidate_probabilities.shape == (2, 2, 5, 5)
    assert torch.equal(out.candidates[:, 0, :, 0] != -1, ids == MASK)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"denoising_steps": 8}, "`denoising_steps=8` needs `max_new_tokens` other than 0"),
        ({"stop_strings": ["a"]}, r"`stop_strings=\['a'\]` needs `max_new_tokens` other than 0"),
        ({"max_time": 5.0}, "`max_time=5.0` needs `max_new_tokens` other than 0"),
        ({"min_new_tokens": 1}, "`min_new_tokens=1` needs `max_new_tokens` other than 0"),
        ({"stopping_criteria": [lambda *args, **kwargs: True]}, r"`stopping_criteria` end an answer, and"),
    ],
)
def test_there_is_no_answer_to_end(tiny_llada, arguments, message):
    with pytest.raises(ValueError, match=message):
        tiny_llada.generate(torch.tensor([[2, MASK]]), max_new_tokens=0, **arguments)


def test_a_prompt_without_masks(tiny_llada):
    message = r"`max_new_tokens=0` fills in the mask tokens \(63\) of the prompt, and `input_ids` has none"
    with pytest.raises(ValueError, match=message):
        tiny_llada.generate(torch.tensor([[2, 3]]), max_new_tokens=0)


def test_shorter_prompts_have_no_steps_in_their_padding(tiny_llada):
    ids, attention_mask = left_padded([[2, 3, MASK, 4, MASK], [MASK, 5]])
    out = tiny_llada.generate(ids, attention_mask=attention_mask, max_new_tokens=0, return_dict_in_generate=True)
    assert sorted(out.commit_step[0].tolist()) == [-1, -1, -1, 0, 1]
    assert out.commit_step[1].tolist() == [-1, -1, -1, 0, -1]
