# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The hash of a model."""

import torch
from accelerate import cpu_offload
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForMaskedLM

from hf_dparallel.hashes import model_hash

from .helpers import make_llada


def make_student(lora_alpha=8):
    torch.manual_seed(0)
    lora = LoraConfig(r=4, lora_alpha=lora_alpha, target_modules=["q_proj"], init_lora_weights=False)
    return get_peft_model(make_llada(), lora)


def test_the_hash_tells_models_apart():
    disabled, nudged, shifted = make_student(), make_llada(), make_llada()
    disabled.base_model.disable_adapter_layers()
    embeddings = nudged.get_input_embeddings().weight.data
    embeddings[33, 17] = torch.nextafter(embeddings[33, 17], torch.tensor(9.0))
    shifted.shift_logits = True
    models = [
        *(make_llada(), make_llada().bfloat16(), nudged, shifted, make_llada(rope_theta=10_000.0)),
        *(make_student(8), make_student(64), disabled),
    ]
    assert len({model_hash(model) for model in models}) == len(models)


def test_the_hash_of_a_model_is_always_the_same(tmp_path):
    assert model_hash(make_student()) == model_hash(make_student())
    (tmp_path / "a").mkdir()
    make_llada().save_pretrained(tmp_path / "a")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    hashes = [model_hash(AutoModelForMaskedLM.from_pretrained(tmp_path / name)) for name in "ab"]
    used = make_llada()
    used.generate(torch.tensor([[2, 3]]), max_new_tokens=4, block_length=4)
    assert hashes[0] == hashes[1] == model_hash(make_llada()) == model_hash(used)


def test_offloaded_weights_count():
    changed = make_llada()
    changed.model.layers[0].self_attn.q_proj.weight.data[0, 0] += 1
    hashes = [model_hash(cpu_offload(model)) for model in (make_llada(), changed)]
    assert hashes == [model_hash(make_llada()), model_hash(changed)] and hashes[0] != hashes[1]
    assert changed.lm_head.weight.device.type == "meta"
