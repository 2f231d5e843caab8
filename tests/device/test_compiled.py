# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What a pass dispatches, and what its graphs use, as far as a CPU can tell: bounds of what a GPU launches."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode

from hf_dparallel.generation.compiled import CompiledPass
from hf_dparallel.generation.configuration import resolve

from ..helpers import lora, make_a2d, make_llada
from .helpers import small_llada, small_sdar


IDS = torch.tensor([[2, 3, 4, 5, 6]])
NEW = {"max_new_tokens": 16, "stop_at_eos": False, "return_dict_in_generate": True}
DUAL = {"cache_implementation": "dual", "block_length": 4, "entropy_threshold": 1.0}
EXACT = {"exact": True, "confidence_threshold": 0.01}

# They launch nothing.
VIEWS = {"alias", "as_strided", "detach", "empty", "expand", "select", "slice", "split", "squeeze", "t", "to"}
VIEWS |= {"transpose", "unsqueeze", "view", "_unsafe_view"}


def make_exact():
    return make_a2d(num_hidden_layers=1, block_length=4, causal_past=True, shift_logits=True)


class Operators(TorchDispatchMode):
    """Counts the operators inside of the first layer of a model, pass by pass."""

    def __init__(self, model):
        super().__init__()
        self.counts = []
        self.is_inside = False
        layer = model.model.layers[0]
        layer.register_forward_pre_hook(lambda *args: self.enter())
        layer.register_forward_hook(lambda *args: self.leave())

    def enter(self):
        self.counts.append(0)
        self.is_inside = True

    def leave(self):
        self.is_inside = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.is_inside and func.overloadpacket.__name__ not in VIEWS:
            self.counts[-1] += 1
        return func(*args, **kwargs or {})


def operators_of_a_layer(model, **settings):
    with Operators(model) as operators:
        model.generate(IDS, **NEW, **settings)
    return max(operators.counts)


def test_a_layer_dispatches_few_operators_and_a_merged_adapter_none():
    settings = {"block_length": 4, "denoising_steps": 8}
    assert operators_of_a_layer(make_llada(), **settings) == 34
    assert operators_of_a_layer(make_llada(), cache_implementation="dual", **settings) == 38
    # No cache of transformers' own, whatever the configuration of a base says.
    with_cache, without = (operators_of_a_layer(make_a2d(use_cache=value), **settings) for value in (True, False))
    assert with_cache == without

    student = make_llada()
    student.add_adapter(lora(target_modules=student.target_modules))
    # Two products, their scale and a sum for each of seven weights.
    assert operators_of_a_layer(student, **settings) == 34 + 7 * 4
    assert operators_of_a_layer(student.merge_and_unload(), **settings) == 34


def is_operator(event):
    return event.name.startswith("aten::") and event.name.removeprefix("aten::") not in VIEWS


@pytest.mark.parametrize(("make", "settings"), [(small_llada, DUAL), (make_exact, EXACT)])
def test_a_pass_dispatches_few_operators_beside_its_graphs(monkeypatch, graphs, make, settings):
    """Counted on the host; the copy of the status to the host is one more."""
    model = make()
    run_pass = CompiledPass.run_pass
    kwargs = NEW | settings | {"compile_config": graphs.config}
    model.generate(IDS, **kwargs)

    passes = []

    def recorded(self):
        with record_function("pass" if passes else "first pass"):
            passes.append(run_pass(self))
        return passes[-1]

    monkeypatch.setattr(CompiledPass, "run_pass", recorded)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        out = model.generate(IDS, **kwargs)
    assert len(passes) == out.nfe.item()

    num_operators = 0
    for event in filter(is_operator, profiled.events()):
        names = []
        around = event.cpu_parent
        while around is not None:
            names.append("operator" if is_operator(around) else around.name)
            around = around.cpu_parent
        num_operators += "pass" in names and "operator" not in names and "graph" not in names
    assert 0 < num_operators <= 11 * (len(passes) - 1)


def move_tensors(owner, device):
    for name, value in vars(owner).items():
        if isinstance(value, torch.Tensor):
            setattr(owner, name, value.to(device))


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (small_llada, DUAL),
        (make_exact, EXACT),
        pytest.param(small_llada, {"block_length": 4, "entropy_threshold": 1.0}, marks=pytest.mark.slow),
        pytest.param(small_sdar, {"confidence_threshold": 0.3}, marks=pytest.mark.slow),
        pytest.param(make_exact, EXACT | {"cache_implementation": "none"}, marks=pytest.mark.slow),
    ],
)
def test_graphs_have_all_tensors_on_one_device(graphs, make, settings):
    """No CUDA graph is recorded of what uses the CPU. So traced with all tensors on another device."""
    model = make()
    config = resolve(model, None, None, **NEW, **settings, compile_config=graphs.config)
    decoder = model.make_decoder(config, [])
    decoder.add_prompts({0: IDS[0]})
    with torch.no_grad():
        decoder.step()
        graphs.devices.clear()
        model.to("meta")
        for owner in (decoder.canvas, *decoder.canvas._of_hooks):
            move_tensors(owner, "meta")
        for layer in decoder.runner.cache.layers if decoder.runner.cache else []:
            layer._keep(layer.keys.to("meta"), layer.values.to("meta"))
        decoder.compiled.run_pass()
    assert graphs.num_graphs >= 2 and graphs.devices == {torch.device("meta")}
