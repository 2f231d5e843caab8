# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Students as serving engines and the published code read them, and those that an engine cannot serve."""

import ast
import json
import shlex

import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM

from hf_dparallel import DiffusionGenerationConfig, export_for_engine
from hf_dparallel_cli import main
from hf_dparallel_rules.settings import SettingError

from ..helpers import edit_json, make_llada, make_llada2, make_sdar, make_sdar_moe, make_tokenizer
from ..models.helpers import save_adapter


# What the engines read from config.json: without a default, and with one that might not be the model's.
_DENSE = """hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads rms_norm_eps
    vocab_size tie_word_embeddings rope_theta head_dim max_position_embeddings attention_bias"""
_LMDEPLOY = f"{_DENSE} sliding_window use_sliding_window pad_token_id bos_token_id eos_token_id"
_MOE = """hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads rms_norm_eps
    vocab_size tie_word_embeddings head_dim hidden_act max_position_embeddings use_bias use_qkv_bias embedding_dropout
    num_experts
    num_experts_per_tok norm_topk_prob num_shared_experts moe_intermediate_size first_k_dense_replace rope_theta
    partial_rotary_factor n_group topk_group routed_scaling_factor score_function router_dtype
    moe_router_enable_expert_bias use_qk_norm"""
KEYS = {
    ("sdar", "sglang"): _DENSE,
    ("sdar_moe", "sglang"): f"{_DENSE} num_experts num_experts_per_tok moe_intermediate_size norm_topk_prob",
    ("llada2_moe", "sglang"): _MOE,
    ("sdar", "lmdeploy"): _LMDEPLOY,
    ("sdar_moe", "lmdeploy"): _LMDEPLOY,
}
MAKERS = {"sdar": make_sdar, "sdar_moe": make_sdar_moe, "llada2_moe": make_llada2, "llada": make_llada}
RULE = {"confidence_threshold": 0.9}
CODE = "from .helper import thing\n\n\nclass TheModel: ...\n"


def save(folder, model, recipe=RULE, code=False, tokenizer=True):
    """A model as somebody has published or trained it."""
    model.generation_config = DiffusionGenerationConfig(**recipe)
    model.save_pretrained(folder)
    if tokenizer:
        make_tokenizer().save_pretrained(folder)
    if code:
        auto_map = {"AutoModel": "modeling_it.TheModel"}
        edit_json(folder / "config.json", auto_map=auto_map, architectures=["TheModel"])
        (folder / "modeling_it.py").write_text(CODE)
        (folder / "helper.py").write_text("thing = 1\n")
    return folder


def logits_of(model):
    with torch.no_grad():
        return model(torch.tensor([[3, 4, 5, 6, 7, 63, 63, 63]])).logits


def with_mask_of_lmdeploy(model_type):
    """LMDeploy always masks with the token of the published models."""
    make = MAKERS[model_type]
    return make(vocab_size=151672, mask_token_id=151669, hidden_size=16, head_dim=4)


@pytest.mark.parametrize(("model_type", "engine"), KEYS)
def test_a_student_for_an_engine(tmp_path, model_type, engine):
    model = with_mask_of_lmdeploy(model_type) if engine == "lmdeploy" else MAKERS[model_type]()
    base = save(tmp_path / "base", model, code=True)
    save_adapter(tmp_path / "student", lambda: AutoModelForMaskedLM.from_pretrained(base), recipe=RULE)
    launch = export_for_engine(tmp_path / "student", engine, tmp_path / "out", base_model=str(base))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    expected = {"sdar": "SDARForCausalLM", "sdar_moe": "SDARMoeForCausalLM", "llada2_moe": "LLaDA2MoeModelLM"}
    assert config["architectures"] == [expected[model_type]]
    assert config["auto_map"] == {"AutoModel": "modeling_it.TheModel"}
    assert not [key for key in KEYS[model_type, engine].split() if key not in config]
    assert (tmp_path / "out" / "modeling_it.py").read_text() == CODE and (tmp_path / "out" / "helper.py").is_file()
    # Tensors under the published names.
    names = [set(safe_open(tmp_path / folder / "model.safetensors", "pt").keys()) for folder in ("base", "out")]
    assert names[0] == names[1]
    # Bit-equal to the merged adapter, and decoded as the engine does.
    again = AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval()
    student = AutoModelForMaskedLM.from_pretrained(tmp_path / "student")
    assert torch.equal(logits_of(again), logits_of(student.merge_and_unload()))
    assert again.generation_config.engine == engine
    words = shlex.split(launch)
    assert str(tmp_path / "out") in words and "--trust-remote-code" in words
    if engine == "sglang":
        settings = yaml.safe_load((tmp_path / "out" / "dllm.yaml").read_text())
        assert settings == {"threshold": 0.9, "block_size": 4}
        assert words[words.index("--dllm-algorithm") + 1] == "LowConfidence"
        # The tiny models have a mask token of their own, which SGLang must be told.
        assert "./hf-dparallel" in words
    else:
        assert words[words.index("--dllm-confidence-threshold") + 1] == "0.9"
    assert launch.replace(str(tmp_path / "out"), ".") in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(
    ("recipe", "engine", "words", "settings"),
    [
        (
            RULE | {"engine": "sglang", "editing_threshold": 0.8, "max_post_steps": 4, "penalty_lambda": 0.5},
            "sglang",
            "--dllm-algorithm JointThreshold",
            {"edit_threshold": 0.8, "max_post_edit_steps": 4, "penalty_lambda": 0.5}
            | {"threshold": 0.9, "block_size": 4},
        ),
        (
            {"entropy_threshold": 0.5, "block_length": 8},
            "sglang",
            "--dllm-algorithm EntropyThreshold",
            {"entropy_threshold": 0.5, "block_size": 8},
        ),
        ({"min_commits": 2}, "lmdeploy", "low_confidence_static --dllm-denoising-steps 2", None),
        (
            {"commit_order": "left_to_right", "max_new_tokens": 16, "denoising_steps": 16},
            "lmdeploy",
            "--dllm-unmasking-strategy sequential --dllm-denoising-steps 4",
            None,
        ),
    ],
)
def test_recipes_in_the_words_of_an_engine(tmp_path, recipe, engine, words, settings):
    model = with_mask_of_lmdeploy("sdar") if engine == "lmdeploy" else make_sdar()
    save(tmp_path / "student", model, recipe)
    assert words in export_for_engine(tmp_path / "student", engine, tmp_path / "out")
    path = tmp_path / "out" / "dllm.yaml"
    assert (yaml.safe_load(path.read_text()) if path.exists() else None) == settings


@pytest.mark.parametrize("model_type", MAKERS)
def test_a_student_for_the_published_code(tmp_path, capsys, model_type):
    save(tmp_path / "base", MAKERS[model_type](), code=True)
    save(tmp_path / "student", MAKERS[model_type](), {"entropy_threshold": 0.5})
    command = ["export", str(tmp_path / "student"), "--engine", "transformers", "--base_model", str(tmp_path / "base")]
    out = tmp_path / "it's {} out"
    assert main([*command, "--output_dir", str(out), "--entropy_threshold", "0.3"]) == 0
    python, _, code, folder = shlex.split(capsys.readouterr().out.splitlines()[0])
    assert (python, folder) == ("python", str(out)) and ast.parse(code)
    config = json.loads((out / "config.json").read_text())
    assert (config["architectures"], config["model_type"]) == (["TheModel"], MAKERS[model_type]().config.model_type)
    assert AutoModelForMaskedLM.from_pretrained(out).generation_config.entropy_threshold == 0.3


def test_a_head_that_was_trained_is_not_tied(tmp_path):
    """Engines read no head from a checkpoint whose configuration ties it to the embeddings."""
    for name in ("base", "student"):
        save(tmp_path / name, make_sdar(tie_word_embeddings=True))
    settings = {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}
    adapter = save_adapter(
        tmp_path / "adapter", lambda: AutoModelForMaskedLM.from_pretrained(tmp_path / "base"), recipe=RULE, **settings
    )
    path = adapter / "adapter_model.safetensors"
    weights = load_file(path)
    name = next(name for name in weights if "lm_head" in name)
    save_file(weights | {name: weights[name] + 1}, path)
    for student, is_tied in (("student", True), ("adapter", False)):
        export_for_engine(tmp_path / student, "sglang", tmp_path / "out" / student)
        folder = tmp_path / "out" / student
        assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is is_tied
        names = safe_open(folder / "model.safetensors", "pt").keys()
        assert ("lm_head.weight" in names) is not is_tied


def drop_a_tensor(folder):
    model = make_sdar()
    del model.model.layers[1].mlp
    model.save_pretrained(folder)


REFUSED = {
    "an engine that nobody knows": ("gguf", {}, {}, "engine"),
    "a family that it does not know": ("sglang", {"make": make_llada}, {}, "engine"),
    "LLaDA2 for LMDeploy": ("lmdeploy", {"make": make_llada2}, {}, "engine"),
    "another mask token for LMDeploy": ("lmdeploy", {}, {}, "mask_token_id"),
    "no rule": ("sglang", {"recipe": {}}, {}, "engine"),
    "a rule of ours for LMDeploy": ("lmdeploy", {"recipe": {"entropy_threshold": 0.5}}, {}, "entropy_threshold"),
    "a rule that remembers": ("sglang", {"recipe": {"denoising_steps": 64}}, {}, "engine"),
    "sampling": ("sglang", {}, {"temperature": 0.5}, "temperature"),
    "several blocks": ("sglang", {}, {"max_active_blocks": 2}, "max_active_blocks"),
    "more commits": ("sglang", {}, {"min_commits": 2}, "min_commits"),
    "a penalty": ("sglang", {}, {"repetition_penalty": 1.2}, "repetition_penalty"),
    "tokens that are kept out": ("lmdeploy", {}, {"suppress_tokens": [3]}, "suppress_tokens"),
    "a least length": ("sglang", {}, {"min_new_tokens": 3}, "min_new_tokens"),
    "verified commits": ("sglang", {}, {"revocation_threshold": 0.5}, "revocation_threshold"),
    "soft decoding": ("sglang", {}, {"soft_threshold": 0.5}, "soft_threshold"),
    "editing for LMDeploy": ("lmdeploy", {}, {"editing_threshold": 0.5}, "editing_threshold"),
    "stop strings": ("sglang", {}, {"stop_strings": ["a"]}, "stop_strings"),
    "a canvas that is too long": ("sglang", {}, {"block_length": 10**5}, "block_length"),
    "another activation": ("sglang", {"hidden_act": "gelu"}, {}, "hidden_act"),
    "a tokenizer that is too large": ("sglang", {"vocab_size": 8, "mask_token_id": 7}, {}, "tokenizer has"),
    "no code": ("transformers", {}, {}, "engine"),
    "no tokenizer": ("sglang", {"tokenizer": False}, {}, "tokenizer"),
    "a missing tensor": ("sglang", {"after": drop_a_tensor}, {}, "lacks"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_served_is_refused_before_anything_is_written(tmp_path, case):
    engine, how, recipe, told = REFUSED[case]
    how = dict(how)
    make, after, tokenizer = how.pop("make", make_sdar), how.pop("after", None), how.pop("tokenizer", True)
    saved = how.pop("recipe", RULE)
    save(tmp_path / "student", make(**how), saved, tokenizer=tokenizer)
    if after is not None:
        after(tmp_path / "student")
    given = DiffusionGenerationConfig(**recipe)
    with pytest.raises((ValueError, OSError)) as caught:
        export_for_engine(tmp_path / "student", engine, tmp_path / "out", generation_config=given)
    # What `generate` can do, `export` cannot.
    assert told in str(caught.value) and "Set `engine=" not in str(caught.value)
    if isinstance(caught.value, SettingError):
        assert caught.value.setting == told
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_empty_is_refused(tmp_path):
    save(tmp_path / "student", make_sdar())
    with pytest.raises(FileExistsError, match="is not empty"):
        export_for_engine(tmp_path / "student", "sglang", tmp_path / "student")
