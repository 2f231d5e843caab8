# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What answers cost, counted by hand."""

import pytest
import torch

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.evaluation.cost import DecodingCost, count_answer_tokens, decoding_efficiency, mean_cost

from ..helpers import make_llada


EOS = 2


@pytest.mark.parametrize(
    ("completion_ids", "eos_token_id", "expected"),
    [
        ([11, 12, 13, EOS, EOS, EOS], EOS, 3),
        ([11, 12, 13], EOS, 3),
        ([EOS, EOS], EOS, 0),
        ([], EOS, 0),
        # What follows the end is no part of the answer, whatever it is.
        ([11, EOS, 12, 13], EOS, 1),
        ([11, 12, 7, EOS, EOS], [EOS, 7], 2),
    ],
)
def test_tokens_before_the_first_end_are_counted(completion_ids, eos_token_id, expected):
    assert count_answer_tokens(completion_ids, eos_token_id) == expected


def test_counted_by_hand():
    answers = [[11, 12, 13, 14, 15, 16, EOS, EOS], [11, 12, EOS], [11, 12, 13, 14]]
    cost = decoding_efficiency(answers, [4, 1, 3], eos_token_id=EOS, max_new_tokens=8, latency_s=[2.0, 1.0, 3.0])
    assert cost == {
        "nfe": 8 / 3,
        "num_tokens": 14 / 3,  # 7 + 3 + 4, with the end
        "num_answer_tokens": 12 / 3,  # 6 + 2 + 4, without it
        "tokens_per_forward": pytest.approx((7 / 4 + 3 / 1 + 4 / 3) / 3),
        "answer_tokens_per_forward": 12 / 8,
        "tokens_per_forward_with_padding": 24 / 8,
        "latency_s": 2.0,
        "tokens_per_second": 12 / 6,
        "latency_p50_s": 2.0,
        "latency_p90_s": pytest.approx(2.8),
        "latency_p99_s": pytest.approx(2.98),
    }
    unpadded = decoding_efficiency(answers, [4, 1, 3], eos_token_id=EOS)
    assert unpadded["tokens_per_forward_with_padding"] == 15 / 8
    assert not any(name.endswith(("_s", "_second")) for name in unpadded)


def test_the_seconds_of_each_answer_and_of_all_together_have_names_of_their_own():
    """Two answers in one batch of 3 seconds, the second of which entered it after a second."""
    costs = [DecodingCost(4, 8, 8, 8, seconds=3.0), DecodingCost(2, 4, 3, 8, seconds=2.0)]
    means = mean_cost(costs, seconds=3.0)
    assert (means["latency_s"], means["row_latency_s"]) == (1.5, 2.5)
    assert (means["tokens_per_second"], means["row_tokens_per_second"]) == (11 / 3, 11 / 5)
    assert "row_latency_s" not in mean_cost([*costs, DecodingCost(2, 4, 3, 8)])


def test_answers_that_took_no_pass_or_no_time():
    means = mean_cost([DecodingCost(0, 0, 0, 0, seconds=0.0)], seconds=0.0)
    assert set(means.values()) == {0.0}


def test_tokens_per_forward_is_that_of_generate():
    config = DiffusionGenerationConfig(max_new_tokens=8, block_length=8, entropy_threshold=1.0)
    model, prompt = make_llada(), torch.tensor([[5, 6, 7]])
    # The token that the model answers with becomes the one that ends an answer.
    token = model.generate(prompt, generation_config=config)[0, 3].item()
    out = model.generate(prompt, generation_config=config, eos_token_id=token, return_dict_in_generate=True)
    new_tokens = out.sequences[0, 3:].tolist()
    length = new_tokens.index(token)
    assert out.tokens_per_forward.item() == pytest.approx((length + 1) / out.nfe.item())
    cost = decoding_efficiency([new_tokens], out.nfe.tolist(), eos_token_id=token)
    assert cost["tokens_per_forward"] == pytest.approx(out.tokens_per_forward.item())
    assert cost["answer_tokens_per_forward"] == pytest.approx(length / out.nfe.item())
    assert cost["tokens_per_forward_with_padding"] == pytest.approx(8 / out.nfe.item())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"completion_ids": [], "nfe": []}, "no answers to measure"),
        ({"nfe": [1]}, r"`nfe` must have one number per answer, got 1 for 2"),
        ({"nfe": [1, 0]}, r"`nfe` must be above 0 for every answer, got 0"),
        ({"latency_s": [1.0]}, r"`latency_s` must have one number per answer"),
        ({"max_new_tokens": 2}, r"`max_new_tokens` must be at least .* got 2 and an answer of 3 tokens"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        decoding_efficiency(**({"completion_ids": [[1, 2, 3], [1]], "nfe": [1, 1], "eos_token_id": EOS} | arguments))
