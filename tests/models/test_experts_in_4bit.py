# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Experts in 4 bits: their size, and answers equal to those of the dequantized weights."""

import pytest
import torch
from bitsandbytes.functional import dequantize_4bit
from bitsandbytes.nn import Params4bit
from peft import PeftModel
from torch import nn
from transformers import AutoModelForMaskedLM, BitsAndBytesConfig

from ..helpers import lora, make_llada2, make_llada_moe, make_sdar_moe, make_trainer


def in_4_bits(folder, skipped=(), **how):
    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", llm_int8_skip_modules=[*skipped, "lm_head"], **how
    )
    # As a mapping where `how` has nothing.
    config = config if how else config.to_dict()
    return AutoModelForMaskedLM.from_pretrained(folder, quantization_config=config, dtype=torch.bfloat16)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("make_model", [make_llada2, make_sdar_moe, make_llada_moe])
def test_answers_are_those_of_the_dequantized_weights(tmp_path, make_model, double):
    make_model().save_pretrained(tmp_path)
    reference = AutoModelForMaskedLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    linear = [name for name, module in reference.named_modules() if isinstance(module, nn.Linear)]
    model = in_4_bits(tmp_path, skipped=linear, bnb_4bit_use_double_quant=double)
    for name, weight in model.named_parameters():
        is_expert = reference.get_parameter(name).dim() == 3
        assert isinstance(weight, Params4bit) is is_expert
        if is_expert:
            # Two weights a byte.
            assert 2 * weight.numel() == reference.get_parameter(name).numel() and weight.element_size() == 1
            reference.get_parameter(name).data = dequantize_4bit(weight.data, weight.quant_state)
    ids = torch.arange(2, 26).view(3, 8)
    assert torch.equal(model(ids).logits, reference(ids).logits)
    settings = {"max_new_tokens": 12, "confidence_threshold": 0.3, "block_length": 4, "stop_at_eos": False}
    assert torch.equal(model.generate(ids, **settings), reference.generate(ids, **settings))


def test_an_adapter_is_trained_on_it_and_saved_alone(tmp_path):
    # Kernels for CPUs take layers of so many outputs.
    sizes = dict.fromkeys(["hidden_size", "intermediate_size", "moe_intermediate_size"], 64)
    make_llada2(head_dim=32, **sizes).save_pretrained(tmp_path / "base")
    model = in_4_bits(tmp_path / "base")
    with pytest.raises(ValueError, match="not serializable"):
        model.save_pretrained(tmp_path / "saved")
    trainer = make_trainer(tmp_path / "student", model, peft_config=lora(), rows=2)
    trainer.train()
    trainer.save_model()
    ids = torch.arange(2, 10)[None]
    with torch.no_grad():  # kernels for CPUs round otherwise with gradients
        plain = in_4_bits(tmp_path / "base")(ids).logits
        again = PeftModel.from_pretrained(in_4_bits(tmp_path / "base"), tmp_path / "student").eval()(ids).logits
        assert torch.equal(again, trainer.model.eval()(ids).logits) and not torch.equal(again, plain)
