# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""docs/exact.md: from the name of an autoregressive model to the same answers in fewer passes."""

import json
import shlex

import pytest
import torch
import yaml
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from hf_dparallel.exact import draft_length
from hf_dparallel_cli.training import read_arguments
from hf_dparallel_cli.trajectories import training_flags

from ..helpers import make_tokenizer, write_jsonl
from ..pages import ROOT, python_blocks


NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
CHAT = "{% for m in messages %}<s> {{ m['content'] }} {% endfor %}"
SHAPE = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}


@pytest.fixture(
    params=[(LlamaConfig, LlamaForCausalLM), (Qwen3MoeConfig, Qwen3MoeForCausalLM)], ids=["llama", "qwen3_moe"]
)
def causal(request, tmp_path) -> str:
    """The folder of an autoregressive model that repeats the last word."""
    config_class, model_class = request.param
    torch.manual_seed(0)
    experts = {"moe_intermediate_size": 16, "num_experts": 2, "num_experts_per_tok": 1}
    model = model_class(config_class(**SHAPE, **(experts if config_class is Qwen3MoeConfig else {})))
    with torch.no_grad():
        model.lm_head.weight.copy_(8 * model.model.embed_tokens.weight)
    folder = tmp_path / "causal"
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def prompts(tmp_path) -> str:
    rows = [{"messages": [{"role": "user", "content": f"{number} {number + 1}"}]} for number in range(8)]
    return write_jsonl(tmp_path / "prompts.jsonl", rows)


def preset(**changes) -> list[str]:
    settings = yaml.safe_load((ROOT / "examples" / "exact" / "student.yaml").read_text()) | changes
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def test_two_commands_and_the_student_by_its_name(hf, causal, prompts, tmp_path, monkeypatch):
    made = hf(
        "trajectories",
        causal,
        "--causal_past",
        "--dataset",
        prompts,
        "--reward",
        "none",
        "--max_new_tokens",
        "8",
        "--output_dir",
        "a",
    )
    assert made[0] == 0, made
    # Without the preset the adapter would be of no use, and half precision needs a GPU.
    following = made[1].partition("Next: hf-dparallel train ")[2]
    with monkeypatch.context() as at_home:
        at_home.chdir(ROOT)
        data, training, student = read_arguments(shlex.split(following))
    assert (student.model_name_or_path, data.dataset_name, student.causal_past) == (causal, "a", True)
    assert " --causal_past false" in training_flags(is_autoregressive=True, is_converted=True)
    assert training.learning_rate == 3e-3 and training.use_cpu and not training.bf16
    code, _, err = hf("train", causal, *preset(max_steps=2, bf16=False, output_dir="s"), "--dataset", "a")
    assert code == 0, err
    adapter = json.loads((tmp_path / "s" / "adapter_config.json").read_text())
    assert adapter["alora_invocation_tokens"] == [64] and adapter["base_model_name_or_path"] == causal
    student = AutoModelForMaskedLM.from_pretrained("s")
    assert student.is_autoregressive and student.config.block_length == 16
    tokenizer = AutoTokenizer.from_pretrained("s")
    ids = tokenizer("5 6", return_tensors="pt")["input_ids"]
    plain = {"max_new_tokens": 8, "do_sample": False}
    expected = type(student).generate(student, ids, max_new_tokens=8, denoising_steps=8)
    kind = Qwen3MoeForCausalLM if "moe" in student.config.model_type else LlamaForCausalLM
    assert torch.equal(kind.from_pretrained(causal).generate(ids, **plain), expected)
    out = student.generate(ids, max_new_tokens=8, confidence_threshold=1e-6, return_dict_in_generate=True)
    assert torch.equal(out.sequences, expected) and out.nfe <= 8
    code, printed, _ = hf("generate", "s", "5 6", "--raw", "--max_new_tokens", "8")
    assert code == 0 and printed.split() == tokenizer.decode(expected[0, ids.shape[1] :]).split()


def test_convert_writes_a_model_that_answers_as_before(hf, causal):
    code, printed, _ = hf("convert", causal, "--attention", "causal_past", "--output_dir", "converted")
    assert code == 0 and "docs/exact.md" in printed
    model = AutoModelForMaskedLM.from_pretrained("converted")
    assert model.is_autoregressive and model.config.block_length == 16


def test_few_prompts_calibrate_what_changes_no_answer(hf, causal, tmp_path):
    rows = [{"prompt": [{"role": "user", "content": f"{number} {number}"}], "answer": "3"} for number in range(4)]
    words = ("--dataset", write_jsonl(tmp_path / "rows.jsonl", rows), "--max_new_tokens", "4", "--output_dir", "r")
    code, _, err = hf("calibrate", causal, "--causal_past", "--sweep", "confidence_threshold=0.1,0.9", *words)
    assert code == 0, err
    code, _, err = hf("calibrate", causal, "--causal_past", "--no_exact", *words)
    assert code == 1 and "Too few prompts" in err


def test_speed_alone_needs_no_answers(hf, causal, prompts, monkeypatch, tmp_path):
    # Whether drafts pay does not depend on what this machine does beside.
    monkeypatch.setattr(draft_length.DraftLength, "choose", lambda self, num_rows, most: min(most, self.longest))
    words = ("--dataset", prompts, "--reward", "none", "--max_new_tokens", "4", "--output_dir")
    sweep = ("--sweep", "confidence_threshold=1e-6,0.9")
    code, printed, err = hf("evaluate", causal, "--causal_past", *words, "e", *sweep)
    assert code == 0 and "Accuracy" not in printed and "confidence_threshold 0.9" in printed, err
    row = json.loads((tmp_path / "e" / "report.json").read_text())["rows"][0]
    assert "accuracy" not in row
    # What the masks draft without an adapter is rarely right.
    assert "Drafts accepted (%), by place" in printed and 0 <= row["acceptance"][0] <= 1
    code, _, err = hf("calibrate", causal, "--causal_past", *words, "c", *sweep)
    assert code == 0, err
    code, _, err = hf("calibrate", causal, "--causal_past", "--no_exact", *words, "d", *sweep)
    assert code == 2 and "--reward none" in err


def test_a_whole_model_is_not_trained(hf, causal, completions):
    words = preset(max_steps=2, bf16=False, output_dir="s")
    code, _, err = hf("train", causal, *words, "--dataset", completions, "--use_peft", "false")
    assert code == 1 and "--use_peft" in err


def test_the_page_runs(causal, monkeypatch, tmp_path):
    for source in python_blocks("docs/exact.md"):
        exec(source.replace(f'"{NAME}"', repr(causal)).replace("max_steps=600", "max_steps=1, use_cpu=True"), {})
    assert (tmp_path / "runs" / "exact-student" / "adapter_model.safetensors").is_file()
