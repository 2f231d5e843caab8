# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Autoregressive checkpoints as diffusion models: the same weights, a mask token, and what is refused."""

import pytest
import torch
from tokenizers import AddedToken
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    GemmaConfig,
    GemmaForCausalLM,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from hf_dparallel import convert_to_diffusion
from hf_dparallel_cli import main

from ..helpers import MASK, edit_json, make_llada, make_tokenizer, make_word_tokenizer, refuses


KINDS = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
    "gemma": (GemmaConfig, GemmaForCausalLM),
}
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "eos_token_id": 1,
}
EXPERTS = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
CONVERTIBLE = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "gemma"])


def save(folder, kind="llama", tokenizer=None, **settings):
    """An autoregressive model with a vocabulary of 64, whose tokenizer by default has a mask token."""
    config_class, model_class = KINDS[kind]
    torch.manual_seed(0)
    own = {"mistral": {"sliding_window": None}, "qwen3_moe": EXPERTS}.get(kind, {})
    model = model_class(config_class(**{"vocab_size": 64, "bos_token_id": 0} | SIZES | own | settings)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            # Biases and norms, too.
            weight.add_(0.2 * torch.randn_like(weight))
    model.to(settings.get("dtype"))
    model.generation_config = GenerationConfig(eos_token_id=[1, 5], do_sample=True, temperature=0.6)
    model.save_pretrained(folder)
    (tokenizer or make_tokenizer()).save_pretrained(folder)
    return model


def without_mask():
    tokenizer = make_tokenizer()
    tokenizer.mask_token = None
    return tokenizer


@pytest.mark.parametrize("is_tied", [False, True])
@CONVERTIBLE
def test_with_a_causal_mask_it_computes_what_it_did_before(tmp_path, kind, is_tied):
    """Also after its vocabulary has grown by the mask token."""
    original = save(tmp_path, kind, without_mask(), tie_word_embeddings=is_tied)
    model, tokenizer = convert_to_diffusion(str(tmp_path))
    assert tokenizer.mask_token_id == model.config.vocab_size - 1 >= 64
    weights = model.state_dict()
    assert weights.keys() == original.state_dict().keys()
    assert all(torch.equal(weight, weights[name][: len(weight)]) for name, weight in original.state_dict().items())
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        torch.testing.assert_close(layer.weight[-1], layer.weight[:64].mean(dim=0), atol=1e-2, rtol=0)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is is_tied
    ids = torch.arange(2, 30).view(2, 14)
    causal = torch.ones(14, 14, dtype=torch.bool).tril().expand(2, 1, -1, -1)
    with torch.no_grad():
        expected, logits = original(ids, attention_mask=causal).logits, model(ids, attention_mask=causal).logits
        assert torch.equal(logits[..., :64], expected)
        # Without it, the first token sees the last one.
        assert not torch.allclose(model(ids).logits[:, 0, :64], expected[:, 0], atol=1e-3)


RESERVED = AddedToken("<|reserved_special_token_7|>", special=True)


@pytest.mark.parametrize(
    ("make", "vocab_size", "expected"),
    [
        (make_tokenizer, 64, ("<mask>", MASK, 64)),
        (make_word_tokenizer, 64, ("<mask>", MASK, 64)),
        (without_mask, 64, ("<|mask|>", 64, 65)),
        (without_mask, 80, ("<|mask|>", 64, 80)),
    ],
    ids=["its own", "its own without an end", "a new one", "a row that no token has"],
)
def test_where_the_mask_token_comes_from(tmp_path, make, vocab_size, expected):
    save(tmp_path, tokenizer=make(), vocab_size=vocab_size)
    model, tokenizer = convert_to_diffusion(str(tmp_path))
    found = (tokenizer.mask_token, tokenizer.mask_token_id, model.config.vocab_size)
    assert found == expected and model.config.mask_token_id == expected[1]


def test_a_reserved_token_becomes_the_mask_token(tmp_path):
    tokenizer = without_mask()
    tokenizer.add_tokens([AddedToken("<tool>"), RESERVED, AddedToken("<|reserved_special_token_8|>")])
    save(tmp_path, tokenizer=tokenizer, vocab_size=67)
    model, tokenizer = convert_to_diffusion(str(tmp_path))
    assert (tokenizer.mask_token, model.config.vocab_size) == (str(RESERVED), 67)
    assert tokenizer(f"5 {RESERVED}")["input_ids"][-1] == tokenizer.mask_token_id == 65


def test_the_padding_token_is_never_the_mask_token(tmp_path):
    tokenizer = without_mask()
    other = AddedToken("<|reserved_special_token_8|>", special=True)
    tokenizer.add_tokens([RESERVED, other])
    tokenizer.pad_token = str(RESERVED)
    save(tmp_path, tokenizer=tokenizer, vocab_size=66)
    model, tokenizer = convert_to_diffusion(str(tmp_path))
    assert (tokenizer.pad_token, tokenizer.mask_token) == (str(RESERVED), str(other))
    assert model.generation_config.mask_token_id == 65 != model.generation_config.pad_token_id


def test_a_causal_past_needs_positions_that_masks_do_not_change(tmp_path):
    save(tmp_path, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
    with refuses("attention", "rope_type='dynamic'"):
        convert_to_diffusion(str(tmp_path), attention="causal_past")
    assert convert_to_diffusion(str(tmp_path))


def test_a_quantized_model_is_refused(tmp_path):
    save(tmp_path)
    edit_json(tmp_path / "config.json", quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    with refuses("model", "is quantized"):
        convert_to_diffusion(str(tmp_path))


@pytest.mark.parametrize(("flags", "attention"), [((), "full"), (("--block_length", "8"), "block_causal")])
def test_the_command_writes_a_model_that_is_to_be_trained(tmp_path, capsys, flags, attention):
    original = save(tmp_path / "original", "qwen3", without_mask())
    folder = tmp_path / "out"
    command = ["convert", str(tmp_path / "original"), "--output_dir", str(folder), *flags]
    assert main(command) == 0
    assert f"{attention}.yaml" in capsys.readouterr().out
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert (model.attention, tokenizer.mask_token_id) == (attention, 64)
    assert tokenizer.chat_template == make_tokenizer().chat_template
    assert torch.equal(model.model.layers[1].mlp.up_proj.weight, original.model.layers[1].mlp.up_proj.weight)
    recipe = {"block_length": 32 if attention == "full" else 8}
    tokens = {"mask_token_id": 64, "eos_token_id": [1, 5], "pad_token_id": 1}
    assert model.generation_config.settings() == recipe | tokens
    assert model.generate(torch.tensor([[3, 4]]), max_new_tokens=8).shape == (1, 10)
    # A second time into the same folder.
    assert main(command) == 1 and "is not empty" in capsys.readouterr().err


REFUSED = {
    "another architecture": ({"kind": "gemma"}, "gemma"),
    "a sliding window": ({"kind": "mistral", "sliding_window": 16}, "sliding window of 16"),
    "a sliding window in some layers": (
        {"kind": "qwen3", "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
        "sliding window of 16",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_diffusion_model_can_be_is_refused(tmp_path, case):
    settings, told = REFUSED[case]
    save(tmp_path, **settings)
    with refuses("model", told):
        convert_to_diffusion(str(tmp_path))


def test_a_diffusion_model_is_refused(tmp_path):
    make_llada().save_pretrained(tmp_path)
    with refuses("model", "already"):
        convert_to_diffusion(str(tmp_path))


def test_an_adapter_and_a_loaded_model_are_refused(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with refuses("name", "is an adapter. Convert its base model"):
        convert_to_diffusion(str(tmp_path))
    with refuses("name", "is no folder and no name on the Hub. Save the model first."):
        convert_to_diffusion(make_llada())


def test_a_block_without_tokens_and_another_attention_are_refused(tmp_path):
    with refuses("block_length"):
        convert_to_diffusion(str(tmp_path), block_length=0)
    with refuses("attention", "with `block_length` it is block-causal"):
        convert_to_diffusion(str(tmp_path), attention="full")
