# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The simulated accelerator does what CUDA is known to do."""

import pytest
import torch

from ..helpers import make_llada
from ..simulated_device import SimulatedDevices


@pytest.fixture
def devices():
    with SimulatedDevices() as devices:
        yield devices


def test_devices_cannot_be_mixed(devices):
    tensor, other, ids = torch.zeros(3, 4, device="cuda"), torch.ones(3, 4, device="cuda:1"), torch.tensor([0, 1])
    for operation in (
        lambda: tensor + torch.ones(4),
        lambda: tensor + other,
        lambda: torch.cat([tensor, torch.ones(1, 4)]),
        lambda: torch.stack([tensor[0, 0], torch.tensor(1.0)]),
        lambda: tensor.gather(1, torch.zeros(3, 1, dtype=torch.long)),
        lambda: torch.ones(3, 4).add_(tensor),
        lambda: torch.ones(3)[ids.to("cuda")],
        lambda: torch.where(tensor > 0, tensor, other[0, 0]),
    ):
        with pytest.raises(RuntimeError, match="at least two devices, .* at .*test_simulated_device.py"):
            operation()
    # What CUDA allows.
    assert (tensor + torch.tensor(2.0)).device == torch.where(tensor > 1, torch.tensor(1.0), tensor).device
    assert tensor[ids].shape == (2, 4)
    tensor.copy_(other)
    assert tensor.cpu().sum() == 12
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        tensor.numpy()


def test_what_waits(devices):
    tensor, ids = torch.zeros(3, 4, device="cuda"), torch.tensor([0, 1], device="cuda")

    def write(key, value):
        tensor[key] = value

    for number, (function, waits) in enumerate(
        (
            (lambda: torch.tensor([1, 2], device="cuda"), True),
            (lambda: tensor.new_tensor([0, 1]), True),
            (lambda: tensor[[0, 1]], True),
            (lambda: tensor.to("cuda:1"), False),
            (lambda: tensor.tolist(), True),
            (lambda: bool(tensor.any()), True),
            (lambda: tensor.sum().item(), True),
            (lambda: tensor[tensor > 2], True),
            (lambda: tensor.nonzero(), True),
            (lambda: write((slice(None), 0), 5.0), False),
            (lambda: write(tensor > 6, 3.0), False),
            (lambda: write(ids, tensor[:2] * 2), False),
            (lambda: tensor.masked_fill(tensor > 1, 0.5), False),
            (lambda: torch.isin(ids, ids), False),
            (lambda: torch.nn.functional.pad(tensor, (1, 0)).cumsum(0), False),
        )
    ):
        devices.label = number
        function()
        assert len(devices.waits_of(number)) == waits, number


def test_gradients_are_where_the_weights_are(devices):
    model = devices.move(make_llada(n_layers=1, weight_tying=True), index=1)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    devices.waits.clear()
    model(torch.tensor([[2, 3, 63]], device="cuda:1")).logits.sum().backward()
    assert {parameter.grad.device for parameter in model.parameters()} == {torch.device("cuda:1")}
    assert len(devices.waits) == 1  # for the ids
