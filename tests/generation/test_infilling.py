# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`max_new_tokens=0`: the mask tokens inside the prompts are decided in place."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ..helpers import MASK, exact_model, left_padded, make_dream, make_llada
from .naive import naive_generate


tokens = st.one_of(st.integers(2, 62), st.just(MASK))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.sampled_from([make_llada, make_dream]),
    st.lists(st.lists(tokens, min_size=1, max_size=20), min_size=1, max_size=4),
    st.sampled_from([3, 4, 8, 32]),
    st.sampled_from([{}, {"entropy_threshold": 1.0}, {"entropy_threshold": 1.0, "max_active_blocks": 2}]),
    st.sampled_from([None, "prefix", "dual"]),
)
def test_equals_the_naive_loop_whatever_the_batch(make, prompts, block_length, rule, cache):
    model = exact_model(make)
    prompts.append([2, MASK, 3])
    ids, attention_mask = left_padded(prompts)
    kwargs = {"max_new_tokens": 0, "block_length": block_length, "return_dict_in_generate": True, **rule}
    interval = None if cache is None else 1
    out = model.generate(
        ids,
        attention_mask=attention_mask,
        cache_implementation=cache,
        cache_refresh_interval=interval,
        **kwargs,
    )
    assert out.sequences.shape == ids.shape and out.commit_step.shape == ids.shape
    for row, prompt in enumerate(prompts):
        expected, nfe = naive_generate(model, prompt, 0, block_length, **rule)
        assert out.sequences[row, -len(prompt) :].tolist() == expected
        assert out.nfe[row] == nfe
        given_tokens = torch.tensor(prompt) != MASK
        assert torch.equal(out.commit_step[row, -len(prompt) :] == -1, given_tokens)
        num_masks = prompt.count(MASK)
        assert out.tokens_per_forward[row] == pytest.approx(num_masks / nfe if nfe else 0)


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
