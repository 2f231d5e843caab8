# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""iLLaDA: files of the published form load, and no file is read as LLaDA's with a mask token that is none."""

import json

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, LlamaConfig, LlamaForCausalLM

from hf_dparallel import ILLaDAForMaskedDiffusion, LLaDAConfig

from ..helpers import make_illada


# As in the published file: no token for masks, the weights of the head are those of the embedding, and code that is
# not for transformers 5.
PUBLISHED = {
    "architectures": ["ILLaDAForCausalLM"],
    "auto_map": {"AutoModelForCausalLM": "modeling_illada.ILLaDAForCausalLM"},
    "model_type": "illada",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "layer_norm_eps": None,
    "resid_pdrop": 0.0,
    # So that predictions are sharp enough to tell attentions apart.
    "initializer_range": 0.3,
    "rope_theta": 5e5,
    "rope_scaling": None,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@pytest.fixture
def published(tmp_path):
    """Returns a Llama, and the folder of an iLLaDA with its weights and names."""
    torch.manual_seed(0)
    not_llama = {"architectures", "auto_map", "model_type", "layer_norm_eps", "resid_pdrop", "rope_scaling"}
    shared = {name: value for name, value in PUBLISHED.items() if name not in not_llama}
    llama = LlamaForCausalLM(LlamaConfig(**shared)).eval()
    weights = {name: weight for name, weight in llama.state_dict().items() if name != "lm_head.weight"}
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED), encoding="utf-8")
    return llama, tmp_path


def test_a_published_file_is_a_llama_that_sees_both_ways(published):
    llama, folder = published
    model = AutoModelForMaskedLM.from_pretrained(folder)
    assert isinstance(model, ILLaDAForMaskedDiffusion) and model.config.mask_token_id == 5
    assert type(AutoModelForCausalLM.from_pretrained(folder)) is type(model)
    ids = torch.randint(6, 64, (2, 9))
    everything = torch.ones(2, 1, 9, 9, dtype=torch.bool)
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, llama(ids, attention_mask=everything).logits)
        assert not model(ids).logits.allclose(llama(ids).logits, atol=1e-3)


def test_masks_are_token_5_and_the_names_on_disk_stay(published, tmp_path):
    _, folder = published
    model = AutoModelForMaskedLM.from_pretrained(folder)
    seen = []
    model.model.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs["input_ids"]), with_kwargs=True)
    model.generate(torch.tensor([[7, 8, 9]]), max_new_tokens=8, block_length=8, denoising_steps=8)
    assert seen[0][0, 3:].tolist() == [5] * 8
    model.save_pretrained(tmp_path / "saved")
    again = AutoModelForMaskedLM.from_pretrained(tmp_path / "saved")
    assert again.config.mask_token_id == 5 and again.config.model_type == "illada"
    assert again.lm_head.weight is again.model.embed_tokens.weight


@pytest.mark.parametrize("other", [{"layer_norm_eps": 1e-5}, {"resid_pdrop": 0.1}, {"block_size": 32}])
def test_another_architecture_under_its_type_is_refused(published, other):
    _, folder = published
    (folder / "config.json").write_text(json.dumps(PUBLISHED | other), encoding="utf-8")
    with pytest.raises(ValueError, match=next(iter(other))):
        AutoConfig.from_pretrained(folder)


@pytest.mark.parametrize("named", [{}, {"mask_token_id": None}])
@pytest.mark.parametrize("vocab_size", [64, 155_136])
def test_a_llada_of_another_vocabulary_names_its_mask_token(published, named, vocab_size):
    """It would decode with LLaDA's, an ordinary token of its own vocabulary, or none."""
    _, folder = published
    file = PUBLISHED | {"model_type": "llada", "vocab_size": vocab_size} | named
    (folder / "config.json").write_text(json.dumps(file), encoding="utf-8")
    with pytest.raises(ValueError, match="mask_token_id.*155136.*iLLaDA" if vocab_size > 64 else "mask_token_id.*64"):
        AutoConfig.from_pretrained(folder)
    assert LLaDAConfig(vocab_size=vocab_size, mask_token_id=63).mask_token_id == 63


def test_a_llada_has_its_mask_token_without_a_name():
    assert LLaDAConfig().mask_token_id == LLaDAConfig(mask_token_id=None).mask_token_id == 126336


def test_the_family_decodes_as_others():
    out = make_illada().generate(torch.tensor([[7, 8, 9]]), max_new_tokens=8, block_length=4, stop_at_eos=False)
    assert out.shape == (1, 11)
