# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Adapters in folders: their recipes, foreign key names, what does not fit, switching and merging."""

from functools import partial
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM
from transformers.utils import logging

from hf_dparallel import A2DQwen2ForMaskedDiffusion, DiffusionGenerationConfig
from hf_dparallel.generation.adapters import active_adapter
from hf_dparallel.generation.configuration import recipe_of
from hf_dparallel.training.student import add_adapter

from ..helpers import (
    make_a2d,
    make_block_a2d,
    make_dream,
    make_llada,
    make_llada2,
    make_rnd1,
    make_sdar,
    make_sdar_moe,
)
from .helpers import INPUT_IDS, adapted, edit_config, logits, save_adapter


PUBLISHED_NAMES = {
    "model.layers.": "model.transformer.blocks.",
    "self_attn.o_proj": "attn_out",
    "self_attn.": "",
    "mlp.gate_proj": "ff_proj",
    "mlp.down_proj": "ff_out",
    "mlp.": "",
}
WEIGHTS = "adapter_model.safetensors"


def edit_weights(folder: Path, edit) -> None:
    weights = load_file(folder / WEIGHTS)
    save_file(edit(weights), folder / WEIGHTS, metadata={"format": "pt"})


def in_published_names(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    renamed = {}
    for name, tensor in weights.items():
        for ours, published in PUBLISHED_NAMES.items():
            name = name.replace(ours, published)
        renamed[name] = tensor
    return renamed


# Recipes


def test_the_recipe_follows_the_active_adapter(tmp_path):
    careful = save_adapter(tmp_path / "careful", recipe={"entropy_threshold": 0.1, "max_new_tokens": 8})
    bold = save_adapter(tmp_path / "bold", seed=1, recipe={"confidence_threshold": 0.5})
    model = make_llada()
    model.generation_config = DiffusionGenerationConfig(denoising_steps=8, block_length=4, max_new_tokens=16)

    def settings():
        return recipe_of(model).settings()

    own = {"max_new_tokens": 16, "block_length": 4, "denoising_steps": 8}
    model.load_adapter(str(careful), "careful")
    assert settings() == {"max_new_tokens": 8, "block_length": 4, "entropy_threshold": 0.1}
    model.load_adapter(str(bold), "bold")
    assert settings() == {"max_new_tokens": 16, "block_length": 4, "confidence_threshold": 0.5}
    model.set_adapter("careful")
    assert settings()["entropy_threshold"] == 0.1
    model.disable_adapters()
    assert settings() == own
    model.enable_adapters()
    assert settings()["entropy_threshold"] == 0.1
    model.delete_adapter(["careful", "bold"])
    assert settings() == own == model.generation_config.settings()


def test_a_new_adapter_does_not_inherit_the_recipe_of_a_deleted_one(tmp_path):
    model = adapted(save_adapter(tmp_path, recipe={"entropy_threshold": 0.1}), adapter_name="a")
    model.add_adapter(LoraConfig(target_modules=["q_proj"]), "fresh")
    assert recipe_of(model).commit_rule() is None
    model.delete_adapter("a")
    model.add_adapter(LoraConfig(target_modules=["q_proj"]), "a")
    model.set_adapter("a")
    assert recipe_of(model).commit_rule() is None


def test_an_adapter_from_a_state_dict_has_no_recipe(tmp_path):
    folder = save_adapter(tmp_path, recipe={"entropy_threshold": 0.1})
    model = adapted(folder, adapter_name="a")
    weights = {name.removeprefix("base_model.model."): value for name, value in load_file(folder / WEIGHTS).items()}
    config = LoraConfig.from_pretrained(folder)
    model.load_adapter(adapter_name="b", peft_config=config, adapter_state_dict=weights)
    assert model.active_adapters() == ["b"] and recipe_of(model).commit_rule() is None
    model.set_adapter("a")
    assert recipe_of(model).commit_rule() == "entropy_threshold"


def test_the_recipe_waits_while_adapters_are_disabled(tmp_path):
    folder = save_adapter(tmp_path, recipe={"entropy_threshold": 0.1})
    model = adapted(folder, adapter_name="a")
    model.load_adapter(str(folder), "b")
    model.disable_adapters()
    for change in (lambda: model.set_adapter("a"), lambda: model.delete_adapter("b")):
        change()
        assert torch.equal(logits(model), logits(make_llada()))
        assert recipe_of(model).commit_rule() is None
    model.enable_adapters()
    assert recipe_of(model).entropy_threshold == 0.1


def test_generate_uses_the_recipe_and_arguments_override_it(tmp_path):
    recipe = {"entropy_threshold": 100.0, "max_new_tokens": 8, "block_length": 4, "stop_at_eos": False}
    model = adapted(save_adapter(tmp_path, recipe=recipe))
    assert model.generate(INPUT_IDS, return_dict_in_generate=True).nfe.tolist() == [2]
    assert model.generate(INPUT_IDS, denoising_steps=4, return_dict_in_generate=True).nfe.tolist() == [4]


def test_loading_an_adapter_leaves_the_configuration_of_the_model_alone(tmp_path, caplog):
    model = make_llada()
    model.generation_config = DiffusionGenerationConfig(max_new_tokens=32)
    model.load_adapter(str(save_adapter(tmp_path, recipe={"entropy_threshold": 0.1})), "a")
    model.generation_config.block_length = 16
    model.load_adapter(str(tmp_path), "b")
    assert model.generation_config.settings() == {"max_new_tokens": 32, "block_length": 16}


def test_a_saved_adapter_keeps_its_recipe(tmp_path):
    model = adapted(save_adapter(tmp_path / "a", recipe={"entropy_threshold": 0.1}))
    model.save_pretrained(tmp_path / "b")
    assert recipe_of(adapted(tmp_path / "b")).entropy_threshold == 0.1


# Calls of transformers that ours replace


def test_adapters_work_with_the_peft_that_is_installed(tmp_path, monkeypatch):
    """Not only with the one that transformers asks for: 5.24 was out before the PEFT that it names."""
    monkeypatch.setattr("transformers.integrations.peft.MIN_PEFT_VERSION", "99")
    model = adapted(save_adapter(tmp_path / "a"), adapter_name="a")
    alone = logits(model)
    model.load_adapter(str(tmp_path / "a"), "b")
    model.generate(INPUT_IDS, max_new_tokens=4, block_length=4)
    model.set_adapter("a")
    model.delete_adapter("b")
    model.disable_adapters()
    model.enable_adapters()
    assert model.active_adapters() == ["a"] == list(model.peft_config)
    model.save_pretrained(tmp_path / "b")
    assert torch.equal(logits(adapted(tmp_path / "b")), alone)
    torch.testing.assert_close(logits(model.merge_and_unload()), alone, atol=1e-3, rtol=0)


@pytest.mark.parametrize("settings", [{"modules_to_save": ["lm_head"]}, {"trainable_token_indices": [3, 5]}], ids=str)
def test_what_is_trained_beside_low_ranks_is_switched_with_them(tmp_path, settings):
    model = adapted(save_adapter(tmp_path / "a", seed=1, **settings), adapter_name="a")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "modules_to_save" in name or "trainable_tokens" in name:
                parameter.add_(1)
    whole = logits(model)
    model.disable_adapters()
    assert torch.equal(logits(model), logits(make_llada()))
    model.set_adapter("a")
    assert torch.equal(logits(model), logits(make_llada()))
    model.enable_adapters()
    assert torch.equal(logits(model), whole)
    if "trainable_token_indices" in settings:  # of which PEFT loads no second adapter
        return
    low_ranks = save_adapter(tmp_path / "b")
    model.load_adapter(str(low_ranks), "b")
    assert torch.equal(logits(model), logits(adapted(low_ranks)))
    model.set_adapter("a")
    assert torch.equal(logits(model), whole)


def test_adapters_that_are_not_there_are_refused(tmp_path):
    model = make_llada()
    calls = [model.active_adapters, model.enable_adapters, model.disable_adapters, model.merge_and_unload]
    for call in (*calls, lambda: model.set_adapter("a")):
        with pytest.raises(ValueError, match="load_adapter"):
            call()
    model.load_adapter(str(save_adapter(tmp_path)), "a")
    with pytest.raises(ValueError, match=r"\['a'\]"):
        model.set_adapter("b")
    with pytest.raises(ValueError, match="already has the adapter 'a'"):
        model.load_adapter(str(tmp_path), "a")
    assert model.active_adapters() == ["a"]


def test_no_adapter_is_active(tmp_path):
    model = adapted(save_adapter(tmp_path, recipe={"entropy_threshold": 0.1}))
    model.set_adapter([])
    assert torch.equal(logits(model), logits(make_llada()))
    assert active_adapter(model) is None and recipe_of(model).entropy_threshold is None
    plain = make_llada().generate(INPUT_IDS, max_new_tokens=4, block_length=4)
    assert torch.equal(model.generate(INPUT_IDS, max_new_tokens=4, block_length=4), plain)
    assert torch.equal(logits(model.merge_and_unload()), logits(make_llada()))


@pytest.mark.parametrize("settings", [{}, {"modules_to_save": ["lm_head"]}, {"trainable_token_indices": [3]}], ids=str)
def test_an_adapter_after_the_last_one_is_not_disabled(tmp_path, settings):
    model = adapted(save_adapter(tmp_path, **settings))
    alone = logits(model)
    model.disable_adapters()
    model.delete_adapter("default")
    model.load_adapter(str(tmp_path))
    assert torch.equal(logits(model), alone)


def test_an_adapter_saved_beside_another_of_the_embeddings_is_loaded(tmp_path):
    """PEFT writes the embeddings under both, by the names inside the other."""
    model = adapted(save_adapter(tmp_path / "a", target_modules=["embed_tokens"]), adapter_name="a")
    model.load_adapter(str(save_adapter(tmp_path / "b", target_modules=["q_proj", "lm_head"])), "b")
    model.save_pretrained(tmp_path / "c")
    assert torch.equal(logits(adapted(tmp_path / "c")), logits(model))


# Targets


@pytest.mark.parametrize(
    ("make", "dense"),
    [
        (make_sdar, {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}),
        (make_sdar_moe, set()),
        (make_rnd1, set()),
        (
            make_llada2,
            {f"mlp.{part}{name}_proj" for part in ("", "shared_experts.") for name in ("gate", "up", "down")},
        ),
    ],
)
def test_attention_and_dense_layers_are_adapted_by_default_and_no_expert_or_router(make, dense):
    model = add_adapter(make(), LoraConfig())
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    modules = {name.partition(".layers.")[2].partition(".lora_")[0].partition(".")[2] for name in trained}
    assert modules == {f"self_attn.{name}_proj" for name in "qkvo"} | dense


# Names


@pytest.mark.parametrize(
    ("alpha_pattern", "translated"),
    [
        ({}, {}),
        ({"ff_out": 16}, {"down_proj": 16}),
        ({"model.transformer.blocks.0.q_proj": 16}, {"model.layers.0.self_attn.q_proj": 16}),
    ],
)
def test_published_names_are_translated(tmp_path, alpha_pattern, translated):
    ours = save_adapter(tmp_path / "ours", alpha_pattern=translated)
    published = save_adapter(tmp_path / "published")
    edit_weights(published, in_published_names)
    # The published configuration lists names of Llama, of which some matched nothing there and would match here.
    targets = ["q_proj", "attn_out", "ff_out", "k_proj", "gate_proj"]
    edit_config(published, target_modules=targets, alpha_pattern=alpha_pattern)
    edit_config(published, layers_to_transform=[0, 1], layers_pattern=["blocks"], exclude_modules=["down_proj"])

    model = adapted(published)
    assert torch.equal(logits(model), logits(adapted(ours)))
    assert not torch.equal(logits(model), logits(make_llada()))
    assert not any("k_proj.lora" in name or "gate_proj.lora" in name for name, _ in model.named_parameters())


@pytest.mark.parametrize(
    ("published", "ours"),
    [("ff_out", "lm_head"), ("wte", "model.embed_tokens"), ("ln_f", "model.norm")],
)
def test_published_names_of_whole_modules_are_translated(tmp_path, published, ours):
    folder = save_adapter(tmp_path, target_modules=["q_proj"], modules_to_save=[ours])
    edit_weights(folder, lambda w: {name: weight + 0.1 for name, weight in w.items()})
    expected = logits(adapted(folder))
    edit_weights(
        folder,
        lambda w: {
            name.replace(f".{ours}.", f".model.transformer.{published}."): weight
            for name, weight in in_published_names(w).items()
        },
    )
    edit_config(folder, modules_to_save=[f"transformer.{published}"])
    assert any(f"transformer.{published}." in name for name in load_file(folder / WEIGHTS))
    assert torch.equal(logits(adapted(folder)), expected)


def save_fused_adapter(folder: Path, rows: int, **settings) -> dict[str, torch.Tensor]:
    """A LoRA of LLaDA2's `query_key_value` and `dense` in the published names."""
    save_adapter(folder, make_llada2, target_modules=["o_proj"])
    names = {"query_key_value.lora_A": (4, 32), "query_key_value.lora_B": (rows, 4), "dense.lora_A": (4, 48)}
    names["dense.lora_B"] = (32, 4)
    generator = torch.Generator().manual_seed(0)
    weights = {
        f"base_model.model.model.layers.{layer}.attention.{name}.weight": 0.1 * torch.randn(shape, generator=generator)
        for layer in range(2)
        for name, shape in names.items()
    }
    edit_weights(folder, lambda _: weights)
    edit_config(folder, target_modules=["query_key_value", "dense"], **settings)
    return weights


def test_a_lora_of_the_fused_attention_of_llada2_becomes_three(tmp_path):
    model = make_llada2()
    attention = [layer.self_attn for layer in model.model.layers]
    sizes = [getattr(attention[0], f"{name}_proj").out_features for name in "qkv"]
    weights = save_fused_adapter(tmp_path, sum(sizes), alpha_pattern={"query_key_value": 24})
    loaded = adapted(tmp_path, make_llada2)
    for layer, module in enumerate(attention):
        prefix = f"base_model.model.model.layers.{layer}.attention"
        fused, dense = (
            weights[f"{prefix}.{name}.lora_B.weight"] @ weights[f"{prefix}.{name}.lora_A.weight"]
            for name in ("query_key_value", "dense")
        )
        for name, change in zip("qkv", fused.split(sizes), strict=True):
            getattr(module, f"{name}_proj").weight.data += 24 / 4 * change
        module.o_proj.weight.data += loaded.peft_config["default"].lora_alpha / 4 * dense
    torch.testing.assert_close(logits(loaded), logits(model), rtol=1e-5, atol=1e-4)
    loaded.save_pretrained(tmp_path / "again")
    torch.testing.assert_close(logits(adapted(tmp_path / "again", make_llada2)), logits(loaded))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda w: {n.replace("q_proj", "qq_proj"): t for n, t in w.items()},
            "4 weights too few .* 4 weights too many",
        ),
        (lambda w: {n: t for n, t in w.items() if "q_proj" not in n}, "4 weights too few"),
        (lambda w: {n.replace("layers.1", "layers.7"): t for n, t in w.items()}, "6 weights too many"),
    ],
)
def test_weights_that_do_not_match_are_an_error(tmp_path, edit, message):
    edit_weights(save_adapter(tmp_path, recipe={"entropy_threshold": 0.1}), edit)
    model = make_llada()
    with pytest.raises(ValueError, match=message):
        model.load_adapter(str(tmp_path))
    assert recipe_of(model).commit_rule() is None


@pytest.mark.parametrize("name", ["lm_head.weight", "model.norm.weight"])
def test_weights_of_the_model_in_an_adapter_are_part_of_it(tmp_path, name):
    """PEFT writes embeddings for a resized vocabulary, though the configuration does not name them."""
    expected, model = adapted(save_adapter(tmp_path)), make_llada()
    for scale in (1, 2):
        weight = scale * make_llada().get_parameter(name).detach()
        edit_weights(tmp_path, lambda w, weight=weight: w | {f"base_model.model.{name}": weight})
        model.load_adapter(str(tmp_path), f"scaled{scale}")
        expected.get_parameter(name).data = weight
        assert torch.equal(logits(model), logits(expected))
    model.save_pretrained(tmp_path / "again")
    assert torch.equal(logits(adapted(tmp_path / "again")), logits(expected))
    model.disable_adapters()
    assert torch.equal(logits(model), logits(make_llada()))


@pytest.mark.parametrize("name", ["bias", "weight"])
def test_an_adapter_that_changes_the_layers_under_it_is_refused(tmp_path, name):
    """As with PEFT's `bias="lora_only"`: the layer is changed for other adapters, too."""
    path = f"model.layers.0.self_attn.q_proj.base_layer.{name}"
    make, size = partial(make_a2d, of=A2DQwen2ForMaskedDiffusion), [48, 32][: 1 + (name == "weight")]
    edit_weights(save_adapter(tmp_path, make), lambda w: w | {f"base_model.model.{path}": torch.ones(size)})
    with pytest.raises(ValueError, match=f"{path}.* would change"):
        adapted(tmp_path, make)


def test_a_setting_that_peft_does_not_know_is_refused(tmp_path):
    edit_config(save_adapter(tmp_path), use_newer_lora=True)
    with pytest.raises(ValueError, match="`use_newer_lora=True`"):
        adapted(tmp_path)
    edit_config(tmp_path, use_newer_lora=False)
    adapted(tmp_path)


def test_an_incomplete_base_is_an_error_with_an_adapter_too(tmp_path):
    make_llada().save_pretrained(tmp_path / "base")
    weights = load_file(tmp_path / "base" / "model.safetensors")
    del weights["model.transformer.ln_f.weight"]
    save_file(weights, tmp_path / "base" / "model.safetensors", metadata={"format": "pt"})
    edit_config(save_adapter(tmp_path / "adapter"), base_model_name_or_path=str(tmp_path / "base"))
    with pytest.raises(ValueError, match=r"lacks 1 weights .*'model\.norm\.weight'"):
        AutoModelForMaskedLM.from_pretrained(tmp_path / "adapter")


def test_pickled_weights_are_refused(tmp_path):
    save_adapter(tmp_path / "adapter")
    torch.save(load_file(tmp_path / "adapter" / WEIGHTS), tmp_path / "adapter" / "adapter_model.bin")
    (tmp_path / "adapter" / WEIGHTS).unlink()
    with pytest.raises(OSError, match=r"adapter_model\.safetensors"):
        adapted(tmp_path / "adapter")
    make_llada().save_pretrained(tmp_path / "model")
    torch.save(load_file(tmp_path / "model" / "model.safetensors"), tmp_path / "model" / "pytorch_model.bin")
    (tmp_path / "model" / "model.safetensors").unlink()
    with pytest.raises(OSError, match=r"model\.safetensors"):
        AutoModelForMaskedLM.from_pretrained(tmp_path / "model")
    pickled = AutoModelForMaskedLM.from_pretrained(tmp_path / "model", use_safetensors=False)
    assert torch.equal(logits(pickled), logits(make_llada()))


@pytest.mark.parametrize("start", ["pissa", "olora"])
def test_an_adapter_that_changes_the_model_is_refused(tmp_path, start):
    edit_config(save_adapter(tmp_path), init_lora_weights=start)
    with pytest.raises(ValueError, match=f"init_lora_weights='{start}'"):
        adapted(tmp_path)


# Switching and merging


@pytest.mark.parametrize("make", [make_llada, make_dream, make_sdar, make_llada2, make_a2d, make_block_a2d])
def test_switching_gives_what_each_adapter_gives_alone(tmp_path, make):
    folders = [save_adapter(tmp_path / str(seed), make, seed) for seed in range(2)]
    alone = [logits(adapted(folder, make)) for folder in folders]
    assert not torch.equal(*alone)

    model = adapted(folders[0], make, adapter_name="a")
    model.load_adapter(str(folders[1]), "b")
    assert torch.equal(logits(model), alone[1])
    model.set_adapter("a")
    assert torch.equal(logits(model), alone[0])


def test_a_configuration_that_is_given_holds(tmp_path):
    model = adapted(save_adapter(tmp_path))
    config = LoraConfig.from_pretrained(tmp_path)
    config.lora_alpha *= 2
    named, positional = adapted(tmp_path, peft_config=config), make_llada()
    positional.load_adapter(str(tmp_path), "a", config)
    assert torch.equal(logits(named), logits(positional)) and not torch.equal(logits(named), logits(model))
    edit_config(tmp_path, lora_alpha=config.lora_alpha)
    assert torch.equal(logits(named), logits(adapted(tmp_path)))


@pytest.mark.parametrize("family", ["llada", "dream", "sdar", "llada2", "a2d", "fast_dllm_v2", "llada_moe", "rnd1"])
def test_merged_models_are_saved_in_the_published_names(tmp_path, golden_dir, family):
    recipe = {"entropy_threshold": 0.3, "max_new_tokens": 8, "block_length": 8}
    published = load_file(golden_dir / family / "model" / "model.safetensors")
    AutoModelForMaskedLM.from_pretrained(golden_dir / family / "model").save_pretrained(tmp_path / "base")

    def make_base():
        return AutoModelForMaskedLM.from_pretrained(tmp_path / "base", dtype="float32")

    model = adapted(save_adapter(tmp_path / "adapter", make_base, recipe=recipe), make_base)
    expected = logits(model)
    model.merge_and_unload().save_pretrained(tmp_path / "merged")

    saved = load_file(tmp_path / "merged" / "model.safetensors")
    assert {name: tensor.shape for name, tensor in saved.items()} == {n: t.shape for n, t in published.items()}
    assert not (tmp_path / "merged" / "adapter_config.json").exists()
    merged = AutoModelForMaskedLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits(merged), expected, rtol=1e-3, atol=1e-3)
    assert not torch.equal(logits(merged), logits(make_base()))
    assert {name: merged.generation_config.settings()[name] for name in recipe} == recipe


def test_an_adapter_without_its_recipe_is_told_once(tmp_path, caplog):
    """PEFT keeps nothing of where an adapter came from."""
    logging.get_logger("hf_dparallel").warning_once.cache_clear()
    model = PeftModel.from_pretrained(make_llada(), save_adapter(tmp_path, recipe={"entropy_threshold": 9.0}))
    settings = {"max_new_tokens": 8, "block_length": 8}
    model.generate(input_ids=INPUT_IDS, entropy_threshold=1.0, **settings)
    adapted(tmp_path).generate(INPUT_IDS, **settings)
    assert "load_adapter" not in caplog.text
    for _ in range(2):
        model.generate(input_ids=INPUT_IDS, **settings)
    assert caplog.text.count("Load the adapter with `model.load_adapter(name)`") == 1
