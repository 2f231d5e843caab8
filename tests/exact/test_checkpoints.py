# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A checkpoint that is converted for exact decoding answers as its own `generate`, whatever tokenizer it has."""

import logging

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from hf_dparallel import CertaintyForcingConfig, CertaintyForcingTrainer, convert_to_diffusion
from hf_dparallel.generation.configuration import resolve

from ..helpers import edit_json, refuses


LETTERS = "abcdefghijklmnopqrstuvwxyz _"
PHI = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"
# Added tokens (special or not), the chat template, and the rows of the embeddings.
FORMS = {
    "Qwen2.5-Coder, with rows to spare": (["</s>", "<|file_sep|>"], False, "{{ messages }}", 40),
    "CodeLlama, without template": (["<unk>", "</s>", "<PRE>", "<EOT>"], True, None, 32),
    "Llama 3, with reserved tokens": (["</s>", "<|reserved_special_token_0|>", "<|eom_id|>"], True, "{{ m }}", 31),
    "Phi-like, roles of the template": (["</s>", "<|user|>", "<|assistant|>", "<|end|>"], True, PHI, 32),
    "Mistral, with control tokens": (["</s>", "[INST]", "[control_8]", "[control_9]"], True, "[INST]", 33),
    "its own mask token": (["</s>", "<mask>"], True, None, 30),
}
LENGTH = 16


def save(folder, added=("</s>", "<extra>"), special=True, template=None, num_rows=30, **generation):
    """A model in float64 whose last added token is likely, and its tokenizer, one token a letter."""
    core = Tokenizer(models.WordLevel({letter: token for token, letter in enumerate(LETTERS)}, unk_token="_"))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.add_tokens([AddedToken(name, special=special, normalized=False) for name in added])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>")
    if "<mask>" in added:
        tokenizer.mask_token = "<mask>"
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=num_rows,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config).double().eval()
    with torch.no_grad():
        last = min(tokenizer.convert_tokens_to_ids(added[-1]), num_rows - 1)
        model.lm_head.weight[last] = 2 * model.model.embed_tokens.weight[10:20].sum(dim=0)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, **generation)
    model.save_pretrained(folder)
    return model


def prompts(count=8):
    return [torch.randint(0, 27, (1, 6), generator=torch.Generator().manual_seed(seed)) for seed in range(count)]


def answers(model, seed=None, **settings):
    """The answers to all prompts, up to the end token."""
    found = []
    for prompt in prompts():
        if seed is not None:
            torch.manual_seed(seed)
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=LENGTH, **settings)
        tokens = out[0, 6:].tolist()
        found.append(tokens[: tokens.index(28)] if 28 in tokens else tokens)
    return found


@pytest.mark.parametrize("form", FORMS)
def test_no_token_of_the_model_is_its_mask_token(tmp_path, form):
    added, special, template, num_rows = FORMS[form]
    original = save(tmp_path, added, special, template, num_rows)
    last = len(LETTERS) + len(added) - 1
    model, tokenizer = convert_to_diffusion(str(tmp_path), attention="causal_past")
    assert tokenizer.mask_token_id == model.config.mask_token_id == num_rows
    expected = answers(original, do_sample=False)
    assert answers(model) == expected
    assert any(last in answer for answer in expected)

    # As an end, and in a prompt.
    ends = {"eos_token_id": [28, last], "max_new_tokens": 8}
    prompt = torch.tensor([[3, last, 5]])
    out = model.generate(prompt, **ends)
    same = original.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, pad_token_id=28, **ends)
    assert torch.equal(out[:, : same.shape[1]], same)

    # The tokenizer reads texts as before, with the template as well.
    plain = AutoTokenizer.from_pretrained(tmp_path)
    for text in (*added, "a<mask>b", "c<|mask|>"):
        assert tokenizer(text)["input_ids"] == plain(text)["input_ids"]


def test_a_converted_model_is_saved_and_loaded(tmp_path, caplog):
    original = save(tmp_path / "original")
    model, tokenizer = convert_to_diffusion(str(tmp_path / "original"), attention="causal_past")
    model.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    with caplog.at_level(logging.WARNING, logger="transformers"):
        loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "saved")
    assert "mask_token_id" not in caplog.text
    assert loaded.config.vocab_size == 30 == loaded.config.mask_token_id
    assert loaded.get_input_embeddings().weight.shape[0] == 30
    assert AutoTokenizer.from_pretrained(tmp_path / "saved").mask_token_id == 30
    assert answers(loaded) == answers(original, do_sample=False)
    with pytest.raises(ValueError, match="outside the model's vocabulary"):
        loaded.generate(torch.tensor([[3, 30]]), max_new_tokens=4)


QWEN = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.3}
CHOICES = {
    "Qwen2.5's": QWEN,
    "n-grams": {"no_repeat_ngram_size": 2},
    "both": {"no_repeat_ngram_size": 3, "repetition_penalty": 0.8},
    "suppressed tokens": {"suppress_tokens": [3, 29]},
    "a bad word": {"bad_words_ids": [[29]]},
    "a bad word beside the end, which stays": {"bad_words_ids": [[29], [28]]},
    "a least length": {"min_new_tokens": 9},
    "Llama 3's": {"do_sample": True, "temperature": 0.6, "top_p": 0.9},
    "none": {},
}


@pytest.mark.parametrize("choice", CHOICES)
def test_what_the_checkpoint_says_of_its_tokens_counts(tmp_path, choice):
    original = save(tmp_path, **CHOICES[choice])
    model, _ = convert_to_diffusion(str(tmp_path), attention="causal_past")
    expected = answers(original, do_sample=False)
    assert answers(model) == answers(model, do_sample=False) == expected
    # Samples are equal by seed, with what the file and transformers' defaults say.
    assert answers(model, seed=1, do_sample=True) == answers(original, seed=1, do_sample=True)
    assert answers(model, seed=1, do_sample=True, top_k=0) == answers(original, seed=1, do_sample=True, top_k=0)
    # The setting matters.
    plain = GenerationConfig(do_sample=False, eos_token_id=28)
    without = save(tmp_path / "plain") if CHOICES[choice] else original
    without.generation_config = plain
    differs = {*CHOICES[choice]} - {"do_sample", "temperature", "top_p", "top_k"}
    assert (answers(without) != expected) is bool(differs)


def test_settings_of_an_old_config_count(tmp_path):
    save(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    edit_json(tmp_path / "config.json", repetition_penalty=1.3)
    original = LlamaForCausalLM.from_pretrained(tmp_path)
    model, _ = convert_to_diffusion(str(tmp_path), attention="causal_past")
    assert model.generation_config.repetition_penalty == original.generation_config.repetition_penalty == 1.3
    assert answers(model) == answers(original, do_sample=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min_length", 12),
        ("typical_p", 0.9),
        ("forced_eos_token_id", 3),
        ("begin_suppress_tokens", [4]),
        ("exponential_decay_length_penalty", (4, 1.1)),
        ("guidance_scale", 1.5),
        ("bad_words_ids", [[3, 4]]),
    ],
)
def test_what_exact_decoding_lacks_is_refused_by_name(tmp_path, name, value):
    save(tmp_path)
    edit_json(tmp_path / "generation_config.json", **{name: value})
    with refuses(name):
        convert_to_diffusion(str(tmp_path), attention="causal_past")


@pytest.mark.parametrize(
    ("file", "name", "value"),
    [
        ("config.json", "pad_token_id", 30),
        ("generation_config.json", "pad_token_id", 31),
        ("generation_config.json", "eos_token_id", [28, 33]),
    ],
)
def test_special_tokens_beyond_the_rows_are_refused(tmp_path, file, name, value):
    save(tmp_path)
    edit_json(tmp_path / file, **{name: value})
    with refuses(name, "beyond the 30 rows"):
        convert_to_diffusion(str(tmp_path), attention="causal_past")


def test_a_tokenizer_with_more_tokens_than_rows_is_refused(tmp_path):
    save(tmp_path, added=["</s>", "<extra>", "<pad>"], num_rows=30)
    with refuses("attention", "has 30 rows for 31 tokens"):
        convert_to_diffusion(str(tmp_path), attention="causal_past")


def test_a_student_decodes_as_it_was_taught(tmp_path):
    original = save(tmp_path / "base", **QWEN)
    model, tokenizer = convert_to_diffusion(str(tmp_path / "base"), attention="causal_past")
    rows = [{"prompt_ids": prompt[0].tolist(), "completion_ids": [1, 2, 3, 28]} for prompt in prompts()]
    args = CertaintyForcingConfig(str(tmp_path / "student"), max_steps=1, report_to=[], use_cpu=True)
    trainer = CertaintyForcingTrainer(
        model, args, Dataset.from_list(rows), processing_class=tokenizer, peft_config=LoraConfig(r=2)
    )
    trainer.train()
    trainer.save_model()
    # Nothing of the embeddings.
    assert (tmp_path / "student" / "adapter_model.safetensors").stat().st_size < 30_000
    card = (tmp_path / "student" / "README.md").read_text()
    assert "An adapter of an autoregressive language model" in card and "It is no model by itself" in card

    student = AutoModelForMaskedLM.from_pretrained(tmp_path / "student")
    assert AutoTokenizer.from_pretrained(tmp_path / "student").mask_token_id == 30
    for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty"):
        assert getattr(resolve(student), name) == getattr(resolve(model), name)
    expected = answers(original, do_sample=False)
    sampled = answers(original, seed=2, do_sample=True)
    for each in (student, trainer.model.get_base_model()):
        assert answers(each) == expected
        assert answers(each, seed=2, do_sample=True) == sampled


def test_n_grams_are_for_exact_decoding(tmp_path):
    save(tmp_path)
    model, _ = convert_to_diffusion(str(tmp_path), attention="causal_past")
    with refuses("no_repeat_ngram_size", "exact=True"):
        model.generate(prompts()[0], exact=False, no_repeat_ngram_size=2, confidence_threshold=0.5)
    other, _ = convert_to_diffusion(str(tmp_path), block_length=4)
    with refuses("no_repeat_ngram_size", "any order"):
        other.generate(prompts()[0], no_repeat_ngram_size=2)
