# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The simulated accelerator does what CUDA is known to do."""

import pytest
import torch

from ..helpers import make_llada
from ..simulated_device import SimulatedDevices, SimulatedTensor


@pytest.fixture
def devices():
    with SimulatedDevices("/tests/device/") as devices:
        yield devices


@pytest.fixture
def kinds(devices):
    """Runs something, and returns the kinds of its events that are not launches."""

    def run(function):
        devices.events.clear()
        function()
        return [event.kind for event in devices.events if event.kind != "launch"]

    return run


def test_tensors_say_where_they_are(devices):
    tensor = torch.zeros(3, 4, device="cuda")
    assert tensor.is_cuda and tensor.device == torch.device("cuda:0") and isinstance(tensor, SimulatedTensor)
    for made in (tensor.new_zeros(2), torch.ones_like(tensor), torch.tensor([1], device=0), tensor.cpu().cuda()):
        assert made.device == torch.device("cuda:0")
    other = tensor.to("cuda:1")
    assert (other * 2).device == torch.arange(3, device=other.device).device == torch.device("cuda:1")
    assert tensor.cpu().device.type == "cpu" and tensor.to("meta").is_meta and torch.empty(2, device="meta").is_meta
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        tensor.numpy()
    view = tensor.view(-1)
    view.add_(1)
    assert tensor.tolist() == [[1] * 4] * 3


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


def test_what_waits(devices, kinds):
    tensor, ids = torch.zeros(3, 4, device="cuda"), torch.tensor([0, 1], device="cuda")

    def write(key, value):
        tensor[key] = value

    copied = ["from_host", "wait"]
    read = ["to_host", "wait"]
    for function, expected in (
        (lambda: torch.tensor([1, 2], device="cuda"), copied),
        (lambda: tensor.new_tensor([0, 1]), copied),
        (lambda: tensor[[0, 1]], copied),
        (lambda: torch.zeros(3).to("cuda", non_blocking=True), ["from_host"]),
        (lambda: tensor.to("cuda:1"), ["between_devices"]),
        (lambda: tensor.tolist(), read),
        (lambda: bool(tensor.any()), ["wait"]),
        (lambda: tensor.sum().item(), ["wait"]),
        (lambda: tensor[tensor > 2], ["wait"]),
        (lambda: tensor.nonzero(), ["wait"]),
        (lambda: write((slice(None), 0), 5.0), []),
        (lambda: write(tensor > 6, 3.0), []),
        (lambda: write(ids, tensor[:2] * 2), []),
        (lambda: tensor.masked_fill(tensor > 1, 0.5), []),
        (lambda: torch.isin(ids, ids), []),
        (lambda: torch.nn.functional.pad(tensor, (1, 0)).cumsum(0), []),
    ):
        assert kinds(function) == expected


def test_what_arrives_late_is_garbage_until_something_waits(devices):
    tensor = torch.tensor([1, 2], device="cuda")
    late = tensor.to("cpu", non_blocking=True)
    assert late.tolist() == [85, 85]
    tensor.sum().item()
    assert late.tolist() == [1, 2]


def test_gradients_are_where_the_weights_are(devices):
    queries = torch.rand(1, 2, 4, 8, device="cuda", requires_grad=True)
    torch.nn.functional.scaled_dot_product_attention(queries, queries, queries).sum().backward()
    assert queries.grad.device == torch.device("cuda:0")
    model = devices.move(make_llada(n_layers=1, weight_tying=True), index=1)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    devices.events.clear()
    model(torch.tensor([[2, 3, 63]], device="cuda:1")).logits.sum().backward()
    assert {parameter.grad.device for parameter in model.parameters()} == {torch.device("cuda:1")}
    assert devices.count("wait", in_model=True) == 0
