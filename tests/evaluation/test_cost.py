# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The cost of answers, counted by hand."""

import pytest
import torch

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.evaluation.cost import DecodingCost, mean_cost
from hf_dparallel.evaluation.metric import DecodingEfficiency

from ..helpers import make_llada


EOS = 2


@pytest.mark.parametrize(
    ("tokens", "eos_token_id", "num_tokens", "num_answer_tokens"),
    [
        ([11, 12, 13, EOS, EOS, EOS], EOS, 4, 3),
        ([11, 12, 13], EOS, 3, 3),
        ([EOS, EOS], EOS, 1, 0),
        ([], EOS, 0, 0),
        # What follows the end is no part of the answer, whatever it is.
        ([11, EOS, 12, 13], EOS, 2, 1),
        ([11, 12, 7, EOS, EOS], [EOS, 7], 3, 2),
    ],
)
def test_tokens_to_the_first_end_are_counted(tokens, eos_token_id, num_tokens, num_answer_tokens):
    cost = DecodingCost.of_tokens(tokens, 1, eos_token_id)
    assert (cost.num_tokens, cost.num_answer_tokens) == (num_tokens, num_answer_tokens)


def test_the_metric_by_hand():
    answers = [[11, 12, 13, 14, 15, 16, EOS, EOS], [11, 12, EOS], [11, 12, 13, 14]]
    metric = DecodingEfficiency()
    cost = metric.compute(predictions=answers, nfe=[4, 1, 3], eos_token_id=EOS, latency_s=[2.0, 1.0, 3.0])
    assert cost == {
        "nfe": 8 / 3,
        "num_tokens": 14 / 3,  # 7 + 3 + 4, with the end
        "num_answer_tokens": 12 / 3,  # 6 + 2 + 4, without it
        "tokens_per_forward": pytest.approx((7 / 4 + 3 / 1 + 4 / 3) / 3),
        "answer_tokens_per_forward": 12 / 8,
        "latency_s": 2.0,
        "tokens_per_second": 12 / 6,
    }
    assert "latency_s" not in metric.compute(predictions=answers, nfe=[4, 1, 3], eos_token_id=EOS)


def test_the_seconds_of_each_answer_and_of_all_together_have_names_of_their_own():
    """Two answers in one batch of 3 seconds, the second of which entered it after a second."""
    costs = [DecodingCost(4, 8, 8, seconds=3.0), DecodingCost(2, 4, 3, seconds=2.0)]
    means = mean_cost(costs, seconds=3.0)
    assert (means["latency_s"], means["row_latency_s"], means["tokens_per_second"]) == (1.5, 2.5, 11 / 3)
    assert "row_latency_s" not in mean_cost([*costs, DecodingCost(2, 4, 3)])
    assert set(mean_cost([DecodingCost(0, 0, 0, seconds=0.0)], seconds=0.0).values()) == {0.0}


def test_tokens_per_forward_is_that_of_generate():
    config = DiffusionGenerationConfig(max_new_tokens=8, block_length=8, entropy_threshold=1.0)
    model, prompt = make_llada(), torch.tensor([[5, 6, 7]])
    # The token that the model answers with becomes the one that ends an answer.
    token = model.generate(prompt, generation_config=config)[0, 3].item()
    out = model.generate(prompt, generation_config=config, eos_token_id=token, return_dict_in_generate=True)
    cost = DecodingCost.of_tokens(out.sequences[0, 3:].tolist(), out.nfe.item(), token)
    assert cost.tokens_per_forward == pytest.approx(out.tokens_per_forward.item())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nfe": [1, 0]}, "`nfe` must have a positive number for each of 2 answers"),
        ({"latency_s": [1.0]}, "`latency_s` must have a positive number for each of 2 answers"),
    ],
)
def test_numbers_that_no_answer_has_are_refused(arguments, message):
    given = {"predictions": [[1, 2, 3], [1]], "nfe": [1, 1], "eos_token_id": EOS} | arguments
    with pytest.raises(ValueError, match=message):
        DecodingEfficiency().compute(**given)
    with pytest.raises(ValueError, match="no answers"):
        mean_cost([])
