# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The tuners of PEFT: each takes effect in `generate`, is disabled, saved and loaded, and merged where it can be."""

import peft
import pytest
import torch
from peft import PeftModel, get_peft_model

from hf_dparallel.generation.answerer import Answerer

from ..helpers import (
    make_block_a2d,
    make_dream,
    make_llada,
    make_llada2,
    make_rnd1,
    make_sdar,
    make_tokenizer,
)


IDS = torch.arange(2, 26).view(2, 12)
MODULES = {"target_modules": ["q_proj", "v_proj"]}
LORA = {"r": 4, **MODULES}
SETTINGS = {"max_new_tokens": 8, "block_length": 4, "denoising_steps": 2}
TUNERS = {
    "lora": peft.LoraConfig(**LORA),
    "lora, all linear layers": peft.LoraConfig(r=4, target_modules="all-linear"),
    "lora, whole head": peft.LoraConfig(modules_to_save=["lm_head"], **LORA),
    "lora, ranks and scales": peft.LoraConfig(rank_pattern={"q_proj": 2}, alpha_pattern={"v_proj": 3}, **LORA),
    "lora, tokens": peft.LoraConfig(trainable_token_indices=[2, 63], **LORA),
    "lora, experts": peft.LoraConfig(target_parameters=["experts.gate_up_proj", "experts.down_proj"], **LORA),
    "dora": peft.LoraConfig(use_dora=True, **LORA),
    "ia3": peft.IA3Config(target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "vera": peft.VeraConfig(target_modules=["q_proj", "o_proj"]),
}
CASES = [(make_llada, name) for name in TUNERS if name != "lora, experts"]
CASES += [(make_llada2, "lora, experts"), (make_rnd1, "lora, experts")]
CASES += [(make, "lora, all linear layers") for make in (make_dream, make_sdar, make_llada2, make_block_a2d)]


def answers(model) -> torch.Tensor:
    return model.generate(IDS, **SETTINGS)


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


def trained(make, name: str) -> PeftModel:
    """A model with an adapter that changes much."""
    model = get_peft_model(make(), TUNERS[name]).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.parametrize(("make", "name"), CASES)
def test_a_tuner_takes_effect_and_is_disabled_saved_and_merged(make, name, tmp_path):
    plain, model = make(), trained(make, name)
    expected, expected_logits = answers(model), logits(model)
    assert not torch.equal(expected, answers(plain))
    assert torch.equal(answers(model.get_base_model()), expected)
    with model.disable_adapter():
        torch.testing.assert_close(logits(model), logits(plain))
        assert torch.equal(answers(model), answers(plain))
    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(make(), tmp_path).eval()
    torch.testing.assert_close(logits(loaded), expected_logits)
    assert torch.equal(answers(loaded), expected)
    if name == "vera":
        # PEFT's own loading only: layers share weights.
        with pytest.raises(ValueError, match="VERA"):
            make().load_adapter(str(tmp_path))
    else:
        check_loading_without_peft_model(make(), tmp_path, logits(loaded))
    merged = model.merge_and_unload()
    torch.testing.assert_close(logits(merged), expected_logits, atol=1e-3, rtol=1e-3)
    assert torch.equal(answers(merged), expected)


def check_loading_without_peft_model(model, folder, expected: torch.Tensor) -> None:
    model.load_adapter(str(folder))
    assert torch.equal(logits(model), expected)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    model.merge_adapter()
    assert any(getattr(layer, "merged", False) for layer in model.modules())
    torch.testing.assert_close(logits(model), expected, atol=1e-3, rtol=1e-3)
    model.unmerge_adapter()
    assert not any(getattr(layer, "merged", False) for layer in model.modules())
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(weight, before[name], atol=1e-5, rtol=1e-5)
    model.merge_and_unload()
    torch.testing.assert_close(logits(model), expected, atol=1e-3, rtol=1e-3)
    assert model.state_dict().keys() == type(model)(model.config).state_dict().keys()


@pytest.mark.parametrize("name", ["PromptTuningConfig", "PrefixTuningConfig", "PromptEncoderConfig"])
@pytest.mark.parametrize("make", [make_llada, make_sdar])
def test_prompt_learning_is_refused(make, name):
    """PEFT adds its virtual tokens in a hook of autoregressive `generate`, and ours would go on without them."""
    shape = {"token_dim": 32, "num_layers": 2, "num_attention_heads": 4}
    config = getattr(peft, name)(task_type="CAUSAL_LM", num_virtual_tokens=2, **shape)
    model = get_peft_model(make(), config)
    for decode in (
        answers,
        lambda model: Answerer(model, make_tokenizer()).decode([[2]]),
    ):
        with pytest.raises(ValueError, match=f"{name} puts virtual tokens"):
            decode(model)


def test_trained_tokens_of_tied_embeddings_are_merged():
    model = get_peft_model(make_llada(weight_tying=True), TUNERS["lora, tokens"]).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "trainable_tokens" in name:
                parameter.add_(1)
    expected = logits(model)
    torch.testing.assert_close(logits(model.merge_and_unload()), expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("task_type", [None, "CAUSAL_LM"])
def test_prompts_by_name_and_many_at_a_time(task_type):
    model = get_peft_model(make_llada(), peft.LoraConfig(init_lora_weights=False, task_type=task_type, **LORA)).eval()
    expected = answers(model.get_base_model())
    out = model.generate(input_ids=IDS, return_dict_in_generate=True, **SETTINGS)
    assert torch.equal(out.sequences, expected) and out.nfe.tolist() == [2, 2]
    rows = model.generate_many(IDS.tolist(), **SETTINGS)
    assert torch.equal(torch.stack([row.tokens for row in rows]), expected[:, 12:])
