# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Training an adapter on base weights of 4 bits."""

import copy

import peft
import pytest
import torch
from bitsandbytes.functional import dequantize_4bit
from bitsandbytes.nn import Linear4bit
from transformers import AutoModelForMaskedLM, BitsAndBytesConfig

from ..helpers import lora, losses_of, make_dream, make_llada, make_rows, make_trainer


@pytest.fixture(params=[make_llada, make_dream], ids=["llada", "dream"])
def quantized(request, tmp_path):
    model = request.param()
    model.save_pretrained(tmp_path / "model")
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "model", quantization_config=config)
    return model, loaded


def dequantized(model, quantized):
    """A model of plain weights with the values of the quantized one."""
    model = copy.deepcopy(model)
    for name, module in quantized.named_modules():
        if isinstance(module, Linear4bit):
            weight = dequantize_4bit(module.weight.data, module.weight.quant_state)
            model.get_submodule(name).weight.data = weight.float()
    return model


def test_gradients_equal_the_gradients_of_the_dequantized_weights(tmp_path, quantized):
    model, loaded = quantized
    assert isinstance(loaded.model.layers[0].self_attn.q_proj, Linear4bit)
    # The head stays as it is.
    assert isinstance(loaded.lm_head, torch.nn.Linear) and loaded.lm_head.weight.is_floating_point()
    settings = {"peft_config": lora(init_lora_weights=False), "activation_checkpointing": False}
    torch.manual_seed(1)
    plain = make_trainer(tmp_path / "plain", dequantized(model, loaded), **settings)
    torch.manual_seed(1)
    trainer = make_trainer(tmp_path / "quantized", loaded, **settings)
    trainer.model.load_state_dict(
        {name: weight for name, weight in plain.model.state_dict().items() if "lora_" in name}, strict=False
    )
    batch = trainer.data_collator(make_rows(3))
    gradients = []
    for each in (plain, trainer):
        each.model.train()
        loss = each.compute_loss(each.model, batch)
        loss.backward()
        parameters = each.model.named_parameters()
        gradients.append({name: weight.grad for name, weight in parameters if weight.requires_grad})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-3, atol=1e-3, msg=name)


def test_trains_and_decodes(tmp_path, quantized):
    _, loaded = quantized
    trainer = make_trainer(tmp_path, loaded, peft_config=lora(), num_train_epochs=3)
    trainer.train()
    assert losses_of(trainer)[-1] < losses_of(trainer)[0]
    out = trainer.model.generate(torch.tensor([[2, 3]]), max_new_tokens=8, block_length=4)
    assert out.shape == (1, 10)


def test_weights_that_a_kernel_without_gradients_has_repacked_are_refused(tmp_path, quantized):
    model, loaded = quantized
    peft.get_peft_model(copy.deepcopy(model), lora(target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    module = loaded.model.layers[0].self_attn.q_proj
    # As bitsandbytes does it when the model is run on a CPU that has the instructions.
    module.support_avx512bf16_for_cpu = True
    module.weight.quant_state.packing_format_for_cpu = True
    with pytest.raises(ValueError, match="repacked for a CPU kernel"):
        make_trainer(tmp_path, loaded, peft_config=lora())
    with pytest.raises(ValueError, match="repacked for a CPU kernel"):
        loaded.load_adapter("an adapter")
    with pytest.raises(ValueError, match="repacked for a CPU kernel"):
        peft.PeftModel.from_pretrained(loaded, tmp_path / "adapter")
