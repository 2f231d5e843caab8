# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What a base was loaded with, and what an adapter of it remembers."""

import pytest
import torch
from transformers import AutoModelForMaskedLM, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from hf_dparallel import A2DLlamaForMaskedDiffusion, A2DQwen2ForMaskedDiffusion

from ..helpers import lora, make_a2d, make_sdar, make_trainer, read_json
from .helpers import logits


def train_student(model, folder):
    trainer = make_trainer(folder, model, peft_config=lora(init_lora_weights=False), max_steps=1)
    trainer.train()
    trainer.save_model()
    return trainer.model.eval()


@pytest.fixture(params=[{"block_length": 4}, {"shift_logits": True}], ids=str)
def given(request):
    return request.param


@pytest.fixture
def base(tmp_path):
    """As published: its config.json says neither."""
    make_a2d().save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def test_a_student_remembers_what_its_base_was_loaded_with(base, tmp_path, given):
    trained = train_student(AutoModelForMaskedLM.from_pretrained(base, **given), tmp_path / "student")
    expected, student = logits(trained), str(tmp_path / "student")
    on_base = AutoModelForMaskedLM.from_pretrained(base)
    on_base.load_adapter(student)
    by_name = [load(student) for load in (AutoModelForMaskedLM.from_pretrained, type(on_base).from_pretrained)]
    on_base.save_pretrained(tmp_path / "again")
    by_name.append(AutoModelForMaskedLM.from_pretrained(tmp_path / "again"))
    for loaded in (on_base, *by_name, AutoModelForMaskedLM.from_pretrained(student, **given)):
        torch.testing.assert_close(logits(loaded), expected)
        assert loaded.config.loaded_with().items() >= given.items()


def test_a_base_that_was_told_otherwise_is_refused(base, tmp_path):
    train_student(AutoModelForMaskedLM.from_pretrained(base, block_length=4), tmp_path / "student")
    other = AutoModelForMaskedLM.from_pretrained(base, block_length=8)
    with pytest.raises(ValueError, match="`block_length=4`, and this one has 8"):
        other.load_adapter(str(tmp_path / "student"))
    with pytest.raises(ValueError, match="`block_length=4`, and this one has 8"):
        AutoModelForMaskedLM.from_pretrained(tmp_path / "student", block_length=8)
    # Nor does a second adapter change the model under the first one.
    train_student(AutoModelForMaskedLM.from_pretrained(base), tmp_path / "full")
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "full")
    with pytest.raises(ValueError, match="`block_length=4`, and this one has None"):
        model.load_adapter(str(tmp_path / "student"), "blocks")


def test_a_student_of_a_base_whose_name_asks_for_blocks_is_loaded(tmp_path):
    base = tmp_path / "Qwen3-0.6B-diffusion-bd3lm-v0.1"
    make_a2d().save_pretrained(base)
    trained = train_student(AutoModelForMaskedLM.from_pretrained(base, block_length=4), tmp_path / "student")
    torch.testing.assert_close(logits(AutoModelForMaskedLM.from_pretrained(tmp_path / "student")), logits(trained))


@pytest.mark.parametrize(
    ("causal_class", "config_class", "own_class", "given"),
    [
        (Qwen2ForCausalLM, Qwen2Config, A2DQwen2ForMaskedDiffusion, {"shift_logits": True, "mask_token_id": 63}),
        (LlamaForCausalLM, LlamaConfig, A2DLlamaForMaskedDiffusion, {"block_length": 4, "mask_token_id": 63}),
    ],
)
def test_files_of_an_autoregressive_type(tmp_path, causal_class, config_class, own_class, given):
    """Open-dCoder and Stable-DiffCoder, and their students."""
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "eos_token_id": 1, "pad_token_id": 1}
    base, student = tmp_path / "base", tmp_path / "student"
    causal_class(config_class(**sizes)).save_pretrained(base)
    with pytest.raises(ValueError, match=f"{own_class.__name__}.from_pretrained"):
        AutoModelForMaskedLM.from_pretrained(base)
    teacher = own_class.from_pretrained(base, **given)
    by_name = AutoModelForMaskedLM.from_pretrained(base, **given)
    assert type(by_name) is own_class and torch.equal(logits(by_name), logits(teacher))
    trained = train_student(teacher, student)
    for load in (AutoModelForMaskedLM.from_pretrained, own_class.from_pretrained):
        loaded = load(student)
        assert type(loaded) is own_class and loaded.config.mask_token_id == 63
        torch.testing.assert_close(logits(loaded), logits(trained))


@pytest.mark.parametrize("keyword", [{"attention_dropout": 0.1}, {"block_length": 4}, {"some_setting_of_others": 1}])
def test_keywords_of_a_configuration_work_by_class_as_by_auto_class(base, keyword):
    for load in (AutoModelForMaskedLM.from_pretrained, type(make_a2d()).from_pretrained):
        if "some_setting_of_others" in keyword:
            with pytest.raises(TypeError):
                load(base, **keyword)
        else:
            model = load(base, **keyword)
            assert all(getattr(model.config, name) == value for name, value in keyword.items())
            assert model.generation_config.block_length is None


def test_a_merged_model_forgets_the_name_of_its_base(tmp_path, caplog):
    make_sdar().save_pretrained(tmp_path / "base")
    train_student(AutoModelForMaskedLM.from_pretrained(tmp_path / "base"), tmp_path / "first")
    merged = AutoModelForMaskedLM.from_pretrained(tmp_path / "first").merge_and_unload()
    assert merged.name_or_path == merged.config.name_or_path == ""
    train_student(merged, tmp_path / "second")
    assert not read_json(tmp_path / "second" / "adapter_config.json")["base_model_name_or_path"]
    assert "The model has no name, as after `merge_and_unload`, so the adapter will not say" in caplog.text
