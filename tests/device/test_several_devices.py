# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Decoding and the loss with layers on two devices, as `device_map="auto"` puts them, and with offloaded weights."""

import pytest
import torch
from accelerate import cpu_offload, dispatch_model

from hf_dparallel import certainty_forcing_loss

from ..helpers import left_padded, make_dream, make_llada
from ..simulated_device import SimulatedDevices


PROMPTS = [[2, 3], [4, 5, 6, 7, 8], [9]]
SETTINGS = {"max_new_tokens": 8, "block_length": 4, "entropy_threshold": 1.0, "stop_at_eos": False}
HEAD = {"model.norm": 1, "model.rotary_emb": 0, "lm_head": 1}
PLACES = {
    "two devices": {"model.embed_tokens": 0, "model.layers.0": 0, "model.layers.1": 1, **HEAD},
    "head on the first": {"model.embed_tokens": 0, "model.layers.0": 0, "model.layers.1": 1, **HEAD, "lm_head": 0},
    "a layer on the CPU": {"model.embed_tokens": 0, "model.layers.0": "cpu", "model.layers.1": 1, **HEAD},
    "all on the CPU": None,
}


def placed(make_model, place):
    if PLACES[place] is None:
        return cpu_offload(make_model(), execution_device=0)
    return dispatch_model(
        make_model(), PLACES[place], main_device=0, skip_keys=make_model()._skip_keys_device_placement
    )


def answers(model, at, cache, as_many):
    settings = SETTINGS | {"cache_implementation": cache}
    if as_many:
        return [row.tokens.tolist() for row in model.generate_many(PROMPTS, batch_size=2, **settings)]
    ids, mask = (tensor.to(at) for tensor in left_padded(PROMPTS, pad=1))
    return model.generate(ids, attention_mask=mask, **settings).tolist()


@pytest.mark.parametrize(
    ("make_model", "place", "cache", "as_many"),
    [
        *[(make_llada, place, cache, False) for place in PLACES for cache in (None, "dual")],
        (make_dream, "two devices", "dual", False),
        *[(make_llada, place, "prefix", True) for place in ("two devices", "all on the CPU")],
    ],
)
def test_answers_are_those_of_one_device(make_model, place, cache, as_many):
    expected = answers(make_model(), "cpu", cache, as_many)
    with SimulatedDevices():
        assert answers(placed(make_model, place), "cuda", cache, as_many) == expected


@pytest.mark.parametrize("place", ["two devices", "head on the first"])
def test_the_loss_is_that_of_one_device(place):
    ids, labels = torch.tensor([[2, 3, 63, 63, 5]]), torch.tensor([[-100, -100, 7, 8, -100]])

    def loss_of(model, at):
        loss = certainty_forcing_loss(model(ids.to(at)).logits, labels.to(at))
        loss.backward()
        return loss.item(), [p.grad.abs().sum().item() for p in model.parameters()]

    expected = loss_of(make_llada(), "cpu")
    with SimulatedDevices():
        loss, gradients = loss_of(placed(make_llada, place), "cuda")
    assert (loss, gradients) == (pytest.approx(expected[0], rel=1e-5), pytest.approx(expected[1], rel=1e-4))
