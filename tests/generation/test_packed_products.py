# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Products with packed weights are the products, whatever happens to the weights."""

import copy
from contextlib import nullcontext

import pytest
import torch
from peft import LoraConfig
from torch import nn

from hf_dparallel.generation import packed_products as module
from hf_dparallel.generation.packed_products import packed_products

from ..helpers import assert_same_row, make_llada, make_sdar


pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")

INPUT_IDS = torch.arange(2, 14)[None]


@pytest.fixture(autouse=True)
def products(monkeypatch) -> list:
    """Models of any size are packed. Returns what is multiplied."""
    monkeypatch.setattr(module, "_FEWEST_WEIGHTS", 1)
    products: list = []
    multiply = module._multiply
    monkeypatch.setattr(module, "_multiply", lambda *args: products.append(args) or multiply(*args))
    return products


def make_model(**lora):
    model = make_llada()
    settings = {"r": 4, "target_modules": ["q_proj", "down_proj"], "init_lora_weights": False} | lora
    model.add_adapter(LoraConfig(**settings), "a")
    model.add_adapter(LoraConfig(**settings), "b")
    return model.eval()


def decode(model, **settings):
    settings = {"max_new_tokens": 16, "block_length": 4, "entropy_threshold": 2.0, "stop_at_eos": False} | settings
    return next(model.generate_many([[5, 6, 7]], **settings))


@pytest.mark.parametrize("size", [(512, 512), (2048, 64)])
def test_a_row_has_the_same_bits_in_every_batch(size):
    torch.manual_seed(0)
    layer, states = nn.Linear(*size), torch.randn(200, size[0])
    with torch.no_grad(), packed_products(layer):
        whole = layer(states)
        for rows in (*range(1, 65), 128, 199):
            assert torch.equal(layer(states[:rows]), whole[:rows]), rows
        assert torch.equal(layer(states.view(4, 50, -1)[:, ::7]), whole.view(4, 50, -1)[:, ::7])
    torch.testing.assert_close(whole, layer(states).detach())


@pytest.mark.parametrize("make, cache", [(make_llada, None), (make_llada, "dual"), (make_sdar, "block")])
def test_decodes_what_it_would_without(make, cache, products, monkeypatch):
    model, settings = make(), {"cache_implementation": cache, "use_cache": None if cache else False}
    row = decode(model, **settings)
    assert len({id(packed) for _, packed, *_ in products}) == 2 * 7 + 1
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    products.clear()
    expected = decode(model, **settings)
    assert not products
    assert_same_row(row, expected, about=cache)


def train(model) -> None:
    model.set_adapter("a")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(INPUT_IDS, labels=INPUT_IDS).loss.backward()
    optimizer.step()


def write_data(model) -> None:
    # As merging does. The version of the weight stays as it is.
    model.lm_head.weight.data += 1


def swap(dim):
    def change(model) -> None:
        weight = model.lm_head.weight.data
        weight.copy_(weight.flip(dim))

    return change


def swap_two_columns(model) -> None:
    weight = model.lm_head.weight.data
    weight[:, [3, 17]] = weight[:, [17, 3]]


def store_at_an_odd_place(model) -> None:
    weight = model.lm_head.weight
    weight.data = torch.cat([torch.zeros(1), weight.detach().flatten() + 1])[1:].view_as(weight)


def load(model) -> None:
    model.load_state_dict({name: weight + 0.1 for name, weight in model.state_dict().items()})


CHANGES = {
    "trained": train,
    "written into": write_data,
    "rows permuted": swap(0),
    "columns permuted": swap(1),
    "two columns swapped": swap_two_columns,
    "at an odd place": store_at_an_odd_place,
    "loaded": load,
    "another adapter": lambda model: model.set_adapter("a"),
    "no adapter": lambda model: model.disable_adapters(),
    "merged": lambda model: model.merge_and_unload(),
    "replaced": lambda model: model.set_output_embeddings(nn.Linear(32, 64, bias=False)),
    "bfloat16": lambda model: model.bfloat16(),
    "a hook": lambda model: model.lm_head.register_forward_hook(lambda module, args, logits: -logits),
    "a parametrization": lambda model: nn.utils.parametrize.register_parametrization(
        model.lm_head, "weight", nn.Flatten()
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_no_weight_is_read_as_it_was(change, products):
    model = make_model()

    @torch.no_grad()
    def logits() -> torch.Tensor:
        return model(INPUT_IDS).logits

    with packed_products(model):
        before = logits()
    CHANGES[change](model)
    expected = logits()
    assert not products or not torch.allclose(before, expected.to(before.dtype)) or change == "a parametrization"
    products.clear()
    with packed_products(model):
        torch.testing.assert_close(logits(), expected, rtol=1e-3, atol=1e-3)
    assert products or change == "bfloat16"


@torch.no_grad()
def test_a_weight_that_changes_inside_is_taken_as_it_is(products):
    layer, states = nn.Linear(16, 16), torch.randn(2, 16)
    with packed_products(layer):
        for change in (lambda: layer.weight.add_(1), lambda: setattr(layer.weight, "data", torch.randn(16, 16))):
            change()
            assert torch.equal(layer(states), states @ layer.weight.T + layer.bias) and not products


def test_what_is_trained_is_not_packed(products):
    model, packed = make_llada(), make_llada()
    for each, context in ((model, nullcontext()), (packed, packed_products(packed))):
        with context:
            each(INPUT_IDS, labels=INPUT_IDS).loss.backward()
    assert not products
    for weight, same in zip(model.parameters(), packed.parameters(), strict=True):
        assert torch.equal(weight.grad, same.grad)


def test_everything_else_is_computed_as_ever(products, monkeypatch):
    layer, states = nn.Linear(16, 16), torch.randn(2, 16)
    double, inference = nn.Linear(16, 16).double(), None
    with torch.inference_mode():
        inference = nn.Linear(16, 16)
    with torch.no_grad(), packed_products(layer):
        layer(states[:0])
        layer(states[0])
        with torch.autocast("cpu"):
            assert layer(states).dtype == torch.bfloat16
    flat = nn.Linear(16, 16)
    flat.weight = nn.Parameter(flat.weight.detach().flatten())
    for other in (double, flat, nn.Linear(15, 16), inference, nn.Linear(16, 16, device="meta")):
        assert isinstance(packed_products(other), nullcontext)
    monkeypatch.setattr(module, "_MOST_BYTES", 1023)
    assert isinstance(packed_products(layer), nullcontext) and not products


def test_zeros_of_another_type_are_packed_anew():
    """As the second matrix of a new adapter is, whose sums are the same in every type."""
    layer = nn.Linear(16, 16, bias=False)
    nn.init.zeros_(layer.weight)
    for dtype in (torch.float32, torch.bfloat16, torch.float32):
        layer.to(dtype)
        with torch.no_grad(), packed_products(layer):
            assert not layer(torch.ones(2, 16, dtype=dtype)).any()


def test_small_models_are_not_packed(monkeypatch):
    monkeypatch.undo()
    assert isinstance(packed_products(make_llada()), nullcontext)
    assert not isinstance(packed_products(nn.Linear(2500, 4000)), nullcontext)


def test_the_copies_go_with_the_weights_and_are_made_once():
    before = len(module._PACKED)
    layer = nn.Linear(16, 16)
    first, second = packed_products(layer), packed_products(layer)
    assert len(module._PACKED) == before + 1
    (one,), (other,) = first._packed.values(), second._packed.values()
    assert one[2] is other[2]
    assert isinstance(copy.deepcopy(layer), nn.Linear) and len(module._PACKED) == before + 1
    del layer, first, second, one, other
    assert len(module._PACKED) == before
