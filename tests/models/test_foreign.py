# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`generate` on models of other classes, and the tokenizer of Dream."""

import json

import peft
import pytest
import torch
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    ModernBertForMaskedLM,
    RobertaConfig,
    RobertaForMaskedLM,
)
from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

from hf_dparallel import A2DQwen2Config, A2DQwen2ForMaskedDiffusion, DreamTokenizer, enable_diffusion_generation

from ..helpers import (
    BERT_SIZES,
    RemoteCodeConfig,
    RemoteCodeModel,
    assert_same_row,
    left_padded,
    make_dream,
    make_llada,
    make_modernbert,
    refuses,
)


def test_modernbert_decodes_every_token():
    model = enable_diffusion_generation(make_modernbert(), mask_token_id=63)
    assert isinstance(model, ModernBertForMaskedLM)
    settings = {"max_new_tokens": 16, "block_length": 8, "stop_at_eos": False, "return_dict_in_generate": True}
    prompts = torch.tensor([[0, 0, 5, 6], [7, 8, 9, 10]])
    out = model.generate(prompts, attention_mask=torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]), **settings)
    assert out.sequences.shape == (2, 20) and not (out.sequences == 63).any()
    assert out.nfe.tolist() == [16, 16]


class KeywordModel(RemoteCodeModel):
    """Takes what it needs as keyword arguments, and selects logits in a way of its own."""

    def forward(self, input_ids, logits_to_keep=0, **kwargs):
        return super().forward(input_ids, **kwargs)


class KeywordsOnlyModel(RemoteCodeModel):
    """Names none of its arguments."""

    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


@pytest.mark.parametrize("make_model", [RemoteCodeModel, KeywordModel, KeywordsOnlyModel, lambda config: make_dream()])
def test_first_token_of_a_padded_prompt_is_filled_in_as_without_padding(make_model):
    settings = {"max_new_tokens": 0, "output_certainty": True, "return_dict_in_generate": True, "eos_token_id": 1}
    model = make_model(RemoteCodeConfig())
    if isinstance(model, RemoteCodeModel):
        model = enable_diffusion_generation(model, mask_token_id=63, shift_logits=True)
    ids = torch.tensor([[0, 0, 63, 6, 7], [2, 3, 4, 5, 63]])
    attention_mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    expected = make_dream().generate(ids[:1, 2:], **settings)
    out = model.generate(ids, attention_mask=attention_mask, **settings)
    assert torch.equal(out.sequences[:1, 2:], expected.sequences)
    torch.testing.assert_close(out.entropies[:1, :, 2:], expected.entropies, equal_nan=True)


def make_roberta() -> RobertaForMaskedLM:
    torch.manual_seed(0)
    tokens = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    config = RobertaConfig(num_hidden_layers=2, max_position_embeddings=66, **BERT_SIZES, **tokens)
    model = RobertaForMaskedLM(config).eval()
    with torch.no_grad():
        model.roberta.embeddings.position_embeddings.weight.normal_()
    return model


def test_a_model_that_counts_positions_in_its_own_way_does_so():
    """RoBERTa counts from after the padding token's id."""
    model = enable_diffusion_generation(make_roberta(), 63)
    canvas, columns = torch.tensor([[5, 6, 7, *[63] * 8]]), torch.arange(3, 11)[None]
    expected = make_roberta()(canvas).logits[:, 3:]
    inputs = {"input_ids": canvas, "position_ids": torch.arange(11)[None]}
    torch.testing.assert_close(model.score(inputs, columns), expected)
    with refuses("attention_mask"):
        model.generate(torch.tensor([[1, 5], [6, 7]]), attention_mask=torch.tensor([[0, 1], [1, 1]]))


def test_enable_on_a_peft_model():
    settings = {"max_new_tokens": 32, "eos_token_id": 1}
    alone = enable_diffusion_generation(make_modernbert(), mask_token_id=63)
    expected = alone.generate(torch.tensor([[5]]), **settings)
    model = peft.get_peft_model(make_modernbert(), peft.LoraConfig(r=2, target_modules=["Wqkv"]))
    model = enable_diffusion_generation(model, mask_token_id=63)
    assert torch.equal(model.generate(torch.tensor([[5]]), **settings), expected)


def test_check_leaves_the_model_in_its_mode():
    model = make_modernbert().train()
    enable_diffusion_generation(model, mask_token_id=63)
    assert model.training


class BlockCausal(RemoteCodeModel):
    """As Fast-dLLM v2: its forward pass counts blocks of 32 from the first column."""

    def forward(self, input_ids, attention_mask=None, position_ids=None):
        block = torch.arange(input_ids.shape[1]) // 32
        visible = (block[None] <= block[:, None]).expand(len(input_ids), 1, -1, -1)
        return super().forward(input_ids, visible, position_ids)


class IgnoresMask(RemoteCodeModel):
    """As the diffusion path of Nemotron-Labs-Diffusion."""

    def forward(self, input_ids, attention_mask=None, position_ids=None):
        return super().forward(input_ids, None, position_ids)


class TakesNoMask(RemoteCodeModel):
    """As RND1, which adds the mask to the scores."""

    def forward(self, input_ids, attention_mask=None, position_ids=None):
        return super().forward(input_ids, torch.zeros(3, 3) + attention_mask, position_ids)


class LostFrequencies(RemoteCodeModel):
    """As remote code for transformers 4, whose buffers transformers 5 leaves as the memory was."""

    def __init__(self, config):
        super().__init__(config)
        self.inner.model.rotary_emb.inv_freq.fill_(1e-38)


@pytest.mark.parametrize(
    ("make_model", "message"),
    [
        (lambda: BlockCausal(RemoteCodeConfig()), "BlockCausal is causal"),
        (lambda: TakesNoMask(RemoteCodeConfig()), "does not give `logits` for `input_ids` and `attention_mask`"),
        (lambda: LostFrequencies(RemoteCodeConfig()), "rotary frequencies of LostFrequencies are lost"),
        # DiffusionGemma, whose `confidence_threshold` is a bound of an entropy.
        (lambda: RemoteCodeModel(RemoteCodeConfig(canvas_length=256)), "canvases of random tokens"),
        (lambda: make_modernbert().model, "does not give `logits`.*`AutoModelForMaskedLM`"),
        (lambda: LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, **BERT_SIZES)), "LlamaForCausalLM is causal"),
        (make_llada, "is a class of this package"),
    ],
)
def test_what_is_no_masked_language_model_is_refused(make_model, message):
    with pytest.raises(ValueError, match=message):
        enable_diffusion_generation(make_model(), mask_token_id=63)
    with pytest.raises(ValueError, match="`mask_token_id` is needed"):
        enable_diffusion_generation(make_modernbert())


BLOCKS = {"max_new_tokens": 70, "block_length": 32, "entropy_threshold": 2.5, "stop_at_eos": False}


@pytest.mark.parametrize(
    "settings", [{}, {"max_active_blocks": 2}, {"editing_threshold": 0.5}, {"block_origin": "answer"}]
)
def test_block_diffusion_of_another_class_equals_the_native_one(settings):
    """The native one has the same weights, an exact cache, and blocks from the first token of each row."""
    model = enable_diffusion_generation(RemoteCodeModel(RemoteCodeConfig()).double(), 63, True, block_length=32)
    native = A2DQwen2ForMaskedDiffusion(A2DQwen2Config(**make_dream().config.to_dict() | {"block_length": 32}))
    native.load_state_dict(make_dream().state_dict())
    native.shift_logits = True
    native.double().eval()
    prompts = [[2, 3, 4, 5, 6], [7] * 40]
    settings = BLOCKS | {"eos_token_id": 1, "pad_token_id": 1, "mask_token_id": 63} | settings
    expected = list(native.generate_many(prompts, **settings))
    for row, other in zip(model.generate_many(prompts, **settings), expected, strict=True):
        assert_same_row(row, other, row.index)
    ids, mask = left_padded(prompts)
    out = model.generate(ids, attention_mask=mask, **settings)
    assert torch.equal(out[:, 40:], torch.stack([row.tokens for row in expected]))


@pytest.mark.parametrize("make_model", [BlockCausal, IgnoresMask])
def test_blocks_of_a_model_that_takes_no_masks_are_refused(make_model):
    with refuses("block_length"):
        enable_diffusion_generation(make_model(RemoteCodeConfig()), 63, block_length=32)


def test_a_model_that_ignores_padding_decodes_prompts_of_one_length_together():
    model = enable_diffusion_generation(IgnoresMask(RemoteCodeConfig()), 63, shift_logits=True)
    settings = {"max_new_tokens": 16, "block_length": 8, "eos_token_id": 1, "entropy_threshold": 1.0}
    prompts = [[5, 6, 7], [8, 9, 10], [2, 3, 4, 5, 6]]
    expected = list(make_dream().generate_many(prompts, **settings))
    # Prompts of other lengths one after the other.
    for row, other in zip(model.generate_many(prompts, **settings), expected, strict=True):
        assert_same_row(row, other, row.index)
    together = model.generate(torch.tensor(prompts[:2]), **settings)
    assert torch.equal(together[:, 3:], torch.stack([row.tokens for row in expected[:2]]))
    ids, mask = left_padded(prompts)
    with refuses("attention_mask", "IgnoresMask ignores"):
        model.generate(ids, attention_mask=mask, **settings)
    with refuses("suffix_length"):
        model.generate(ids[2:], suffix_length=4, **settings)


def test_dream_tokenizer_loads_through_the_auto_class(tmp_path):
    """From the files of a published Dream repository: vocabulary, merges, a remote tokenizer class in the auto_map."""
    vocabulary = {token: index for index, token in enumerate(["a", "b", "c", "ab", "<|endoftext|>"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    added = {"5": "<|im_end|>", "6": "<|beginoftext|>", "7": "<|mask|>"}
    tokenizer_config = {
        "tokenizer_class": "DreamTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        "added_tokens_decoder": {key: {"content": value, "special": True} for key, value in added.items()},
        "pad_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
        "bos_token": "<|beginoftext|>",
        "mask_token": "<|mask|>",
        "chat_template": "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    make_dream().config.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert type(tokenizer) is tokenizer_class_from_name("DreamTokenizer") is DreamTokenizer
    assert tokenizer.mask_token_id == 7 and tokenizer.eos_token_id == tokenizer.pad_token_id == 4
    assert tokenizer("abc<|mask|>")["input_ids"] == [3, 2, 7]
    assert tokenizer.padding_side == "left"
    tokenizer.save_pretrained(tmp_path / "saved")
    make_dream().config.save_pretrained(tmp_path / "saved")
    assert AutoTokenizer.from_pretrained(tmp_path / "saved")("abc<|mask|>")["input_ids"] == [3, 2, 7]
