# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Adapters that are merged in place and taken out again."""

import copy
import warnings
from functools import partial

import accelerate
import peft
import pytest
import torch
from peft import LoraConfig
from peft.tuners.tuners_utils import BaseTunerLayer
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForMaskedLM, BitsAndBytesConfig

from hf_dparallel import enable_diffusion_generation
from hf_dparallel.generation.adapters import set_adapter
from hf_dparallel.generation.configuration import recipe_of
from hf_dparallel.models.adapters import merge_unrounded

from ..helpers import make_llada, make_llada2, make_modernbert
from .helpers import INPUT_IDS, adapted, logits, save_adapter


ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
close = partial(torch.testing.assert_close, atol=1e-3, rtol=1e-3)


@pytest.fixture(autouse=True)
def no_warnings_of_peft():
    """Such as that an adapter is merged already, or cannot be set while it is merged."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*merged", module="peft")
        yield


@pytest.fixture
def folder(tmp_path):
    return save_adapter(tmp_path / "a", recipe={"entropy_threshold": 0.1, "max_new_tokens": 8, "block_length": 4})


class Operators(TorchDispatchMode):
    """Counts the operators that compute something: each is a kernel on a GPU."""

    count = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.count += not operator.is_view and operator.name().partition(".")[0] not in (
            "aten::_unsafe_view",
            "aten::t",
        )
        return operator(*args, **(kwargs or {}))


def num_operators(model) -> int:
    with Operators() as operators:
        logits(model)
    return operators.count


def num_merged(model) -> int:
    return sum(bool(layer.merged) for layer in model.modules() if isinstance(layer, BaseTunerLayer))


def base_weights(model) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in model.state_dict().items() if "lora_" not in name}


def test_a_merged_adapter_costs_no_products(tmp_path):
    counts = {"plain": [], "unmerged": [], "merged": []}
    for num_layers in (1, 2):
        make = partial(make_llada, n_layers=num_layers)
        counts["plain"].append(num_operators(make()))
        model = adapted(save_adapter(tmp_path / str(num_layers), make, target_modules=ALL), make)
        counts["unmerged"].append(num_operators(model))
        model.merge_adapter()
        counts["merged"].append(num_operators(model))
    # Of a layer.
    assert {name: two - one for name, (one, two) in counts.items()} == {"plain": 34, "unmerged": 62, "merged": 34}


def test_generate_uses_the_recipe_of_a_merged_adapter(folder):
    model = adapted(folder)
    expected = model.generate(INPUT_IDS, return_dict_in_generate=True)
    model.merge_adapter()
    assert recipe_of(model).entropy_threshold == 0.1 and model.active_adapters() == ["default"]
    out = model.generate(INPUT_IDS, return_dict_in_generate=True)
    assert torch.equal(out.sequences, expected.sequences) and torch.equal(out.nfe, expected.nfe)


def test_merging_twice_and_taking_out_twice_is_once(folder):
    model = adapted(folder)
    before = base_weights(model)
    for _ in range(2):
        model.merge_adapter()
    once = adapted(folder)
    once.merge_adapter()
    assert torch.equal(logits(model), logits(once))
    for _ in range(2):
        model.unmerge_adapter()
    assert base_weights(model).keys() == before.keys() and not num_merged(model)


def test_what_needs_the_base_takes_the_adapter_out(folder, tmp_path):
    other = save_adapter(tmp_path / "b", seed=1)
    alone = {"a": logits(adapted(folder)), "b": logits(adapted(other)), None: logits(make_llada())}

    def merged(name="a"):
        model = adapted(folder, adapter_name="a")
        model.load_adapter(str(other), "b")
        model.set_adapter(name)
        model.merge_adapter()
        assert num_merged(model)
        return model

    model = merged()
    model.disable_adapters()
    close(logits(model), alone[None])
    assert recipe_of(model).commit_rule() is None
    model.enable_adapters()
    close(logits(model), alone["a"])

    model = merged()
    model.set_adapter("b")
    close(logits(model), alone["b"])
    for name in ("a", None, "b"):
        set_adapter(model, name)
        close(logits(model), alone[name])

    for deleted, left in (("b", "a"), ("a", "b")):
        model = merged()
        model.delete_adapter(deleted)
        model.set_adapter(left)
        close(logits(model), alone[left])

    model = merged()
    model.load_adapter(str(other), "c")
    close(logits(model), alone["b"])
    model = merged()
    model.add_adapter(LoraConfig(target_modules=["q_proj"]), "new")
    close(logits(model), alone[None])

    model = merged("b")
    model.merge_and_unload()
    close(logits(model), alone["b"])
    assert not hasattr(model, "peft_config")


def test_setting_the_merged_adapter_leaves_it_merged(folder):
    model = adapted(folder)
    model.merge_adapter()
    for again in (lambda: model.set_adapter("default"), model.enable_adapters, lambda: set_adapter(model, "default")):
        again()
        assert num_merged(model) == 6


def test_several_adapters_are_merged_together_or_by_name(folder, tmp_path):
    model = adapted(folder, adapter_name="a")
    model.load_adapter(str(save_adapter(tmp_path / "b", seed=1)), "b")
    model.set_adapter(["a", "b"])
    both = logits(model)
    model.merge_adapter()
    close(logits(model), both)
    model.merge_adapter(["a"])
    assert model.active_adapters() == ["a"] and recipe_of(model).entropy_threshold == 0.1
    close(logits(model), logits(adapted(folder)))


@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize("settings", [{"trainable_token_indices": [3, 5]}, {"modules_to_save": ["lm_head"]}], ids=str)
def test_one_of_several_adapters_stays(folder, tmp_path, settings, is_merged):
    """What the others have trained whole is left to them."""
    for name in ("a", "b"):
        model = adapted(folder, adapter_name="a")
        model.load_adapter(str(save_adapter(tmp_path / "b", seed=1, **settings)), "b")
        model.set_adapter(name)
        alone = logits(model)
        if is_merged:
            model.merge_adapter()
        close(logits(model.merge_and_unload()), alone)


def test_training_takes_the_adapter_out(folder):
    model = adapted(folder, is_trainable=True)
    model.merge_adapter()
    model.train()
    assert not num_merged(model)
    model(INPUT_IDS, labels=INPUT_IDS).loss.backward()
    assert all(weight.grad is not None for name, weight in model.named_parameters() if "lora_" in name)
    model.eval().merge_adapter()
    assert num_merged(model)


@pytest.mark.parametrize("settings", [{}, {"modules_to_save": ["lm_head"]}, {"target_modules": ["q_proj", "lm_head"]}])
def test_a_merged_adapter_is_saved_as_it_was(tmp_path, settings):
    model = adapted(save_adapter(tmp_path / "a", **settings))
    alone = logits(model)
    model.merge_adapter()
    if "lm_head" in settings.get("target_modules", ()):
        # PEFT writes the weights under it, too, which are not the model's now.
        with pytest.raises(ValueError, match="unmerge_adapter"):
            model.save_pretrained(tmp_path / "b")
        model.unmerge_adapter()
        return
    model.save_pretrained(tmp_path / "b")
    assert num_merged(model)
    close(logits(adapted(tmp_path / "b")), alone)


@pytest.mark.parametrize("change", [torch.nn.Module.half, torch.nn.Module.bfloat16])
def test_half_precision_is_merged_and_not_taken_out(folder, change):
    """Its weights would not be those of before."""
    model = change(adapted(folder))
    calls = [model.unmerge_adapter, model.disable_adapters, model.train]
    calls += [lambda: model.set_adapter([]), lambda: model.load_adapter(str(folder), "b")]
    calls += [lambda: model.delete_adapter("default"), lambda: model.add_adapter(LoraConfig(), "b")]
    assert not merge_unrounded(model) and not num_merged(model)
    model.merge_adapter()
    # The weights have been rounded, whatever they become.
    for become in (change, torch.nn.Module.float):
        become(model)
        for call in calls:
            with pytest.raises(ValueError, match=r"in half precision.*from_pretrained"):
                call()
        assert num_merged(model) == 6 and list(model.peft_config) == ["default"]
    model.eval().set_adapter("default")
    model.merge_and_unload()
    # Weights of its own, which nothing has rounded since.
    model.load_adapter(str(folder))
    model.merge_adapter()
    model.unmerge_adapter()


def test_weights_that_became_half_precision_are_not_taken_out(folder):
    model = adapted(folder)
    model.merge_adapter()
    model.half()
    with pytest.raises(ValueError, match="in half precision"):
        model.disable_adapters()


def test_what_cannot_be_merged_is_refused_and_left_as_it_was(folder, tmp_path):
    with pytest.raises(ValueError, match="load_adapter"):
        make_llada().merge_adapter()
    model = adapted(folder)
    model.load_adapter(str(save_adapter(tmp_path / "b", seed=1)), "b")
    model.disable_adapters()
    for call in (model.merge_adapter, lambda: model.merge_adapter(["default"]), model.merge_and_unload):
        with pytest.raises(ValueError, match="enable_adapters"):
            call()
        assert model.active_adapters() == ["b"]
    model.delete_adapter("b")
    model.enable_adapters()
    with pytest.raises(ValueError, match=r"\['default'\]"):
        model.merge_adapter(["b"])

    masks = adapted(save_adapter(tmp_path / "masks", alora_invocation_tokens=[60]), adapter_name="masks")
    masks.load_adapter(str(folder), "plain")
    with pytest.raises(ValueError, match="'masks' acts on masks only"):
        masks.merge_adapter(["masks"])
    assert masks.active_adapters() == ["plain"]
    masks.set_adapter("masks")
    with pytest.raises(ValueError, match="acts on masks only"):
        masks.merge_adapter()
    assert not merge_unrounded(masks)

    before = base_weights(model)
    last = [layer for layer in model.modules() if isinstance(layer, BaseTunerLayer)][-1]
    last.lora_B["default"].weight.data[:] = float("nan")
    for call in (model.merge_adapter, model.merge_and_unload):
        with pytest.raises(ValueError, match="NaNs"):
            call()
    model.unmerge_adapter()
    for name, weight in base_weights(model).items():
        torch.testing.assert_close(weight, before[name], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_low_ranks_on_tied_weights_are_refused(tmp_path, target):
    """The weights under one are those of the other, too."""
    make = partial(make_llada, weight_tying=True)
    model = adapted(save_adapter(tmp_path, make, target_modules=["q_proj", target]), make)
    for call in (model.merge_adapter, model.merge_and_unload):
        with pytest.raises(ValueError, match="tied"):
            call()
    assert not merge_unrounded(model)


def test_offloaded_weights_are_refused(folder):
    """PEFT would add to tensors without data, and take the adapter for merged."""
    for merge in ("merge_adapter", "merge_and_unload"):
        model = adapted(folder)
        alone = logits(model)
        accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
        with pytest.raises(ValueError, match="offloaded"):
            getattr(model, merge)()
        assert torch.equal(logits(model), alone)


def test_quantized_weights_are_refused(tmp_path):
    """PEFT rounds the sums, and on a CPU reads weights that bitsandbytes has packed."""
    make_llada(d_model=64, mlp_hidden_size=128).save_pretrained(tmp_path)
    quantized = BitsAndBytesConfig(load_in_4bit=True)
    model = AutoModelForMaskedLM.from_pretrained(tmp_path, quantization_config=quantized, dtype="float32")
    model.add_adapter(LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    for merge in (model.merge_adapter, model.merge_and_unload):
        with pytest.raises(ValueError, match="quantized"):
            merge()
    assert not merge_unrounded(model) and not num_merged(model)


def test_an_adapter_is_merged_where_the_answers_stay(folder):
    model = adapted(folder)
    assert merge_unrounded(model) and num_merged(model) == 6
    assert not merge_unrounded(make_llada())
    foreign = enable_diffusion_generation(make_modernbert(), mask_token_id=60)
    foreign.add_adapter(LoraConfig(target_modules=["Wqkv"]))
    assert not merge_unrounded(foreign)


def test_a_copy_of_a_merged_model_is_its_own(folder):
    model = adapted(folder)
    model.merge_adapter()
    copied = copy.deepcopy(model)
    copied.unmerge_adapter()
    assert num_merged(model) == 6 and not num_merged(copied)


def test_the_fused_attention_of_llada2_is_merged(tmp_path):
    config = peft.LoraConfig(target_modules=["q_proj", "o_proj"], init_lora_weights=False)
    model = make_llada2()
    model.add_adapter(config)
    alone = logits(model)
    model.merge_adapter()
    close(logits(model), alone)
