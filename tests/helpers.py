# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Tiny models, tokenizers, prompts and trainers that several test files share."""

import copy
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
import transformers
from packaging.version import Version
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import (
    AutoModelForMaskedLM,
    DiffusionGemmaConfig,
    DiffusionGemmaForBlockDiffusion,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.generation.streamers import BaseStreamer
from transformers.modeling_outputs import MaskedLMOutput

from hf_dparallel import (
    A2DQwen3ForMaskedDiffusion,
    CertaintyForcingConfig,
    CertaintyForcingTrainer,
    DreamForMaskedDiffusion,
    FastDLLMForMaskedDiffusion,
    ILLaDAForMaskedDiffusion,
    LLaDA2ForMaskedDiffusion,
    LLaDAForMaskedDiffusion,
    LLaDAMoeForMaskedDiffusion,
    NemotronDiffusionForMaskedDiffusion,
    RND1ForMaskedDiffusion,
    SDARForMaskedDiffusion,
    SDARMoeForMaskedDiffusion,
)
from hf_dparallel.experimental.autoregressive_loss import AutoregressiveLossConfig
from hf_dparallel_rules.settings import SettingError


if TYPE_CHECKING:
    from datasets import Dataset


# The mask and end tokens of the models and tokenizers below.
MASK, EOS = 63, 1


def refuses(setting: str, match: str | None = None):
    """Expects an error about a setting; `match` picks one of several rules that could be broken."""
    return pytest.raises(SettingError, match=match, check=lambda error: error.setting == setting)


def assert_same_row(row, other, about):
    """Asserts that two decodes of a prompt have the same tokens, in the same passes, with as many revisions."""
    assert torch.equal(row.tokens, other.tokens) and torch.equal(row.commit_step, other.commit_step), about
    assert (row.nfe, row.num_revisions) == (other.nfe, other.num_revisions), about


def _sharpened(model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # The weights of all experts of a layer are one tensor of three dimensions.
            if parameter.ndim >= 2:
                parameter.normal_(std=1.0 if "embed_tokens" in name or "lm_head" in name else 0.25)
        if isinstance(model, LLaDA2ForMaskedDiffusion):
            model.model.layers[-1].mlp.gate.e_score_correction_bias.normal_(std=0.2)
    return model.eval()


_TOKENS = {"vocab_size": 64, "mask_token_id": 63, "eos_token_id": 1, "pad_token_id": 1}
# What the classes with the names of transformers have in common.
_SIZES = _TOKENS | {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
}
_HEADS = {"head_dim": 12, "bos_token_id": 1}
_EXPERTS = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
# Queries grow from position 8 on.
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "original_max_position_embeddings": 8}
_YARN |= {"llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0}


def _maker(name: str, of: type, sizes: dict, **settings):
    """Returns what makes random models of a class, with attention and predictions sharp enough to tell rows apart."""

    def make(of=of, **overrides):
        torch.manual_seed(0)
        return _sharpened(of(of.config_class(**(sizes | settings | overrides))))

    make.__name__ = f"make_{name}"
    return make


_LLADA = {"d_model": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "mlp_hidden_size": 64}
make_llada = _maker("llada", LLaDAForMaskedDiffusion, _TOKENS | _LLADA, max_sequence_length=128)
make_illada = _maker("illada", ILLaDAForMaskedDiffusion, _SIZES, bos_token_id=1)
make_dream = _maker("dream", DreamForMaskedDiffusion, _SIZES, bos_token_id=1)
# A class of another autoregressive family is `of`. With `block_length` it is block-causal.
make_a2d = _maker("a2d", A2DQwen3ForMaskedDiffusion, _SIZES | _HEADS)
make_llada_moe = _maker("llada_moe", LLaDAMoeForMaskedDiffusion, _SIZES | _EXPERTS)
make_rnd1 = _maker("rnd1", RND1ForMaskedDiffusion, _SIZES | _EXPERTS, head_dim=12)
# With blocks of 4 tokens. LLaDA2 has a dense layer, and a layer of 8 experts in 4 groups.
make_block_a2d = _maker("block_a2d", A2DQwen3ForMaskedDiffusion, _SIZES | _HEADS, block_length=4)
make_sdar = _maker("sdar", SDARForMaskedDiffusion, _SIZES | _HEADS, block_size=4)
make_sdar_moe = _maker("sdar_moe", SDARMoeForMaskedDiffusion, _SIZES | _HEADS | _EXPERTS, block_size=4)
make_fast_dllm = _maker("fast_dllm", FastDLLMForMaskedDiffusion, _SIZES, bd_size=4, bos_token_id=1)
make_nemotron = _maker(
    "nemotron", NemotronDiffusionForMaskedDiffusion, _SIZES | _HEADS, block_size=4, rope_parameters=_YARN
)
make_llada2 = _maker(
    "llada2",
    LLaDA2ForMaskedDiffusion,
    _SIZES | _EXPERTS | {"num_experts": 8, "n_group": 4, "topk_group": 2},
    head_dim=12,
    block_length=4,
)


def make_diffusion_gemma(canvas_length=4, num_hidden_layers=2, **overrides) -> DiffusionGemmaForBlockDiffusion:
    """Returns a random DiffusionGemma of the same size, whose sliding layers see 6 tokens."""
    text = _SIZES | {
        "head_dim": 8,
        "num_hidden_layers": num_hidden_layers,
        "layer_types": ["sliding_attention"] * (num_hidden_layers - 1) + ["full_attention"],
        "global_head_dim": 12,
        "num_global_key_value_heads": 1,
        "sliding_window": 6,
        "moe_intermediate_size": 16,
        "num_experts": 4,
        "top_k_experts": 2,
        "use_bidirectional_attention": "vision",
    }
    del text["mask_token_id"]
    sizes = ["hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"]
    vision = dict.fromkeys([*sizes, "num_hidden_layers", "position_embedding_size"], 4) | {"num_hidden_layers": 1}
    config = DiffusionGemmaConfig(
        text_config=text | overrides, vision_config=vision, canvas_length=canvas_length, image_token_id=62
    )
    torch.manual_seed(0)
    model = _sharpened(DiffusionGemmaForBlockDiffusion(config))
    for half, scalar in ((model.model.encoder.language_model, 0.9), (model.model.decoder, 1.1)):
        for layer in half.layers:
            layer.layer_scalar.fill_(scalar)
    return model


# Makers of all families of masked models.
FAMILIES = [make_llada, make_dream, make_sdar, make_sdar_moe, make_llada2, make_a2d]
FAMILIES += [make_block_a2d, make_fast_dllm, make_nemotron, make_llada_moe, make_rnd1, make_illada]


def enable_checkpointing(model, *arguments) -> None:
    """Has a model compute activations again in the backward pass, which has another name up to transformers 5.22."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable(*arguments)


# Before, neither what these tests read nor what they resume could be.
NEEDS_5_19 = pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.19"), reason="docs/releases.md: works from transformers 5.19 on"
)


class RemoteCodeConfig(PreTrainedConfig):
    model_type = "stand_in_remote_code"


class RemoteCodeModel(PreTrainedModel):
    """As remote-code classes are: raw shifted logits everywhere, no `logits_to_keep`, positional oddities."""

    config_class = RemoteCodeConfig

    def __init__(self, config):
        super().__init__(config)
        self.inner = make_dream()

    def get_input_embeddings(self) -> nn.Module:
        return self.inner.get_input_embeddings()

    def forward(self, input_ids, attention_mask=None, position_ids=None):
        hidden = self.inner.model(input_ids, attention_mask=attention_mask, position_ids=position_ids)
        return MaskedLMOutput(logits=self.inner.lm_head(hidden.last_hidden_state))


BERT_SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}


def make_modernbert() -> ModernBertForMaskedLM:
    torch.manual_seed(0)
    tokens = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "cls_token_id": 2, "sep_token_id": 1}
    return ModernBertForMaskedLM(ModernBertConfig(num_hidden_layers=2, **BERT_SIZES, **tokens)).eval()


def make_tokenizer() -> PreTrainedTokenizerFast:
    words = {"<s>": 0, "</s>": 1, **{str(number): number + 2 for number in range(60)}, r"\boxed{4}": 62, "<mask>": 63}
    backend = Tokenizer(models.WordLevel(words, unk_token="0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
        mask_token="<mask>",
        chat_template="{% for m in messages %}<s> {{ m['content'] }} {% endfor %}",
    )


def save_two_students(folder: Path) -> None:
    """Saves a LLaDA as `base`, and two adapters of it, each with the tokenizer."""
    for name in ("base", "dparallel", "consistency"):
        make_tokenizer().save_pretrained(folder / name)
    make_llada().save_pretrained(folder / "base")
    base = AutoModelForMaskedLM.from_pretrained(folder / "base")
    for seed, name in enumerate(("dparallel", "consistency")):
        torch.manual_seed(seed)
        config = LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False)
        get_peft_model(copy.deepcopy(base), config).save_pretrained(folder / name)


def make_word_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer with one word per id: transformers' own stop strings fail, as they need "abcdef"."""
    words = {f"w{index}": index for index in range(63)} | {"<mask>": 63}
    backend = Tokenizer(models.WordLevel(words, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, mask_token="<mask>")


def make_prompts(count: int) -> "Dataset":
    from datasets import Dataset

    texts = [" ".join(str((7 * row + k) % 60) for k in range(1 + row % 5)) for row in range(count)]
    return Dataset.from_dict({"prompt": texts, "answer": [str(row) for row in range(count)]})


def exact_model(make):
    # In float64 the last bits, which do depend on the batch, are too small to turn an argmax or a comparison.
    return make().double()


def left_padded(prompts, pad=0):
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return ids, mask


def with_equal_settings(runs) -> list[tuple[dict, list]]:
    """Groups `(run, settings)` pairs by their settings, so that each group can be decoded in one batch."""
    groups: dict[str, tuple[dict, list]] = {}
    for run, settings in runs:
        groups.setdefault(repr(settings), (settings, []))[1].append(run)
    return list(groups.values())


def make_rows(count, seed=0):
    rng = random.Random(seed)
    return [
        {
            "prompt_ids": [rng.randrange(2, MASK) for _ in range(rng.randrange(2, 6))],
            "completion_ids": [rng.randrange(2, MASK) for _ in range(rng.randrange(1, 12))] + [EOS],
        }
        for _ in range(count)
    ]


def make_dataset(count, seed=0):
    from datasets import Dataset

    # As `generate_trajectories` returns it: with columns that training does not look at.
    rows = make_rows(count, seed)
    return Dataset.from_list(
        [row | {"nfe": 3, "commit_step": list(range(len(row["completion_ids"])))} for row in rows]
    )


def make_args(output_dir, **settings):
    defaults = {
        "output_dir": str(output_dir),
        "block_length": 4,
        "max_length": 24,
        "per_device_train_batch_size": 2,
        "num_train_epochs": 1,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    is_autoregressive = "autoregressive_weight" in settings
    config_class = AutoregressiveLossConfig if is_autoregressive else CertaintyForcingConfig
    return config_class(**(defaults | settings))


def make_trainer(output_dir, model=None, rows=6, peft_config=None, train_dataset=None, eval_dataset=None, **settings):
    return CertaintyForcingTrainer(
        model=make_llada() if model is None else model,
        args=make_args(output_dir, **settings),
        train_dataset=make_dataset(rows) if train_dataset is None else train_dataset,
        eval_dataset=eval_dataset,
        peft_config=peft_config,
    )


def lora(**settings):
    return LoraConfig(**({"r": 4, "lora_alpha": 8} | settings))


def weights_of(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def losses_of(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


class Recorder(BaseStreamer):
    """Notes what it gets; `drafts` with what was final before them."""

    def __init__(self):
        self.tokens, self.drafts, self.events, self.prompt = [], [], [], None

    def put(self, value):
        self.events.append("put")
        self.tokens += value.flatten().tolist()
        self.prompt = self.prompt or list(self.tokens)

    def put_draft(self, value, **kwargs):
        self.events.append("draft")
        assert value.numel() > 0
        self.drafts.append(self.tokens + value.flatten().tolist())

    def end(self):
        self.events.append("end")


def is_right(text: str) -> bool:
    """Returns whether a text has an even sum of numbers, as an arbitrary reward."""
    return sum(int(word) for word in text.split() if word.isdigit()) % 2 == 0


def reward_of_the_text(completions, **kwargs):
    return [float(is_right(text)) for text in completions]


def read_json(path: str):
    return json.loads(Path(path).read_text())


def read_jsonl(path) -> list[dict]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def write_jsonl(path, rows) -> str:
    Path(path).write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def edit_json(path: Path, **settings) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
