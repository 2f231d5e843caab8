# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Students as serving engines read them, and those that an engine cannot serve."""

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

from ..helpers import edit_json, make_llada, make_llada2, make_sdar, make_sdar_moe, make_tokenizer
from ..models.helpers import save_adapter


# The engines mask with the token of the published models, whatever the checkpoint says.
PUBLISHED = {"hidden_size": 16, "head_dim": 4}
MAKERS = {
    "sdar": lambda **how: make_sdar(**{"vocab_size": 151672, "mask_token_id": 151669} | PUBLISHED | how),
    "sdar_moe": lambda **how: make_sdar_moe(**{"vocab_size": 151672, "mask_token_id": 151669} | PUBLISHED | how),
    "llada2_moe": lambda **how: make_llada2(**{"vocab_size": 156896, "mask_token_id": 156895} | PUBLISHED | how),
    "llada": make_llada,
}
CLASSES = {"sdar": "SDARForCausalLM", "sdar_moe": "SDARMoeForCausalLM", "llada2_moe": "LLaDA2MoeModelLM"}
# What the engines read from config.json.
KEYS = {
    "sdar": "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads rms_norm_eps "
    "vocab_size tie_word_embeddings rope_theta head_dim max_position_embeddings attention_bias sliding_window "
    "use_sliding_window pad_token_id bos_token_id eos_token_id",
    "sdar_moe": "num_experts num_experts_per_tok moe_intermediate_size norm_topk_prob rope_theta",
    "llada2_moe": "hidden_act use_bias use_qkv_bias embedding_dropout num_experts num_experts_per_tok norm_topk_prob "
    "num_shared_experts moe_intermediate_size first_k_dense_replace rope_theta partial_rotary_factor n_group "
    "topk_group routed_scaling_factor score_function router_dtype moe_router_enable_expert_bias use_qk_norm",
}
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


@pytest.mark.parametrize(
    ("model_type", "engine"), [*((name, "sglang") for name in CLASSES), ("sdar", "lmdeploy"), ("sdar_moe", "lmdeploy")]
)
def test_a_student_for_an_engine(tmp_path, model_type, engine):
    base = save(tmp_path / "base", MAKERS[model_type](), code=True)
    save_adapter(tmp_path / "student", lambda: AutoModelForMaskedLM.from_pretrained(base), recipe=RULE)
    launch = export_for_engine(tmp_path / "student", engine, tmp_path / "out", base_model=str(base))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == [CLASSES[model_type]]
    assert config["auto_map"] == {"AutoModel": "modeling_it.TheModel"}
    assert not [key for key in KEYS[model_type].split() if key not in config]
    assert (tmp_path / "out" / "modeling_it.py").read_text() == CODE and (tmp_path / "out" / "helper.py").is_file()
    # Tensors under the published names, bit-equal to the merged adapter.
    names = [set(safe_open(tmp_path / folder / "model.safetensors", "pt").keys()) for folder in ("base", "out")]
    assert names[0] == names[1]
    again = AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval()
    student = AutoModelForMaskedLM.from_pretrained(tmp_path / "student")
    assert torch.equal(logits_of(again), logits_of(student.merge_and_unload()))
    words = shlex.split(launch)
    assert str(tmp_path / "out") in words and "--trust-remote-code" in words
    if engine == "sglang":
        settings = yaml.safe_load((tmp_path / "out" / "dllm.yaml").read_text())
        assert settings == {"threshold": 0.9, "block_size": 4}
        assert words[words.index("--dllm-algorithm") + 1] == "LowConfidence"
    else:
        assert words[words.index("--dllm-confidence-threshold") + 1] == "0.9"
    assert launch.replace(str(tmp_path / "out"), ".") in (tmp_path / "out" / "launch.sh").read_text()


def test_editing_in_the_words_of_sglang(tmp_path):
    save(tmp_path / "student", MAKERS["llada2_moe"](), RULE | {"editing_threshold": 0.8, "max_post_steps": 4})
    launch = export_for_engine(tmp_path / "student", "sglang", tmp_path / "out")
    assert "--dllm-algorithm JointThreshold" in launch
    settings = yaml.safe_load((tmp_path / "out" / "dllm.yaml").read_text())
    assert settings == {"threshold": 0.9, "block_size": 4, "edit_threshold": 0.8, "max_post_edit_steps": 4}


def test_the_command_overrides_the_recipe(tmp_path, capsys):
    save(tmp_path / "base", MAKERS["sdar"](), code=True)
    save(tmp_path / "student", MAKERS["sdar"]())
    out = tmp_path / "it's {} out"
    command = ["export", str(tmp_path / "student"), "--engine", "sglang", "--base_model", str(tmp_path / "base")]
    assert main([*command, "--output_dir", str(out), "--confidence_threshold", "0.7"]) == 0
    assert str(out) in shlex.split(capsys.readouterr().out.splitlines()[0])
    assert AutoModelForMaskedLM.from_pretrained(out).generation_config.confidence_threshold == 0.7


def test_a_head_that_was_trained_is_not_tied(tmp_path):
    """Engines read no head from a checkpoint whose configuration ties it to the embeddings."""
    for name in ("base", "student"):
        save(tmp_path / name, MAKERS["sdar"](tie_word_embeddings=True))
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


REFUSED = {
    "an engine that nobody knows": ("gguf", {}, {}, "engine"),
    "a family that it does not know": ("sglang", {"make": make_llada}, {}, "engine"),
    "LLaDA2 for LMDeploy": ("lmdeploy", {"make": MAKERS["llada2_moe"]}, {}, "engine"),
    "another mask token": ("sglang", {"make": make_sdar}, {}, "mask_token_id"),
    "no rule": ("sglang", {"recipe": {}}, {}, "confidence_threshold"),
    "a rule of ours": ("lmdeploy", {"recipe": {"entropy_threshold": 0.5}}, {}, "confidence_threshold"),
    "sampling": ("sglang", {}, {"temperature": 0.5}, "temperature"),
    "a penalty": ("sglang", {}, {"repetition_penalty": 1.2}, "repetition_penalty"),
    "blocks of the answer": ("sglang", {}, {"block_origin": "answer"}, "block_origin"),
    "editing for LMDeploy": ("lmdeploy", {}, {"editing_threshold": 0.5}, "editing_threshold"),
    "a tokenizer that is too large": ("sglang", {"vocab_size": 8, "mask_token_id": 7}, {}, "tokenizer has"),
    "no tokenizer": ("sglang", {"tokenizer": False}, {}, "tokenizer"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_served_is_refused_before_anything_is_written(tmp_path, case):
    engine, how, recipe, told = REFUSED[case]
    how = {"make": MAKERS["sdar"], "tokenizer": True, "recipe": RULE} | how
    make, tokenizer, saved = (how.pop(name) for name in ("make", "tokenizer", "recipe"))
    save(tmp_path / "student", make(**how), saved, tokenizer=tokenizer)
    given = DiffusionGenerationConfig(**recipe)
    with pytest.raises((ValueError, OSError), match=told) as caught:
        export_for_engine(tmp_path / "student", engine, tmp_path / "out", generation_config=given)
    assert getattr(caught.value, "setting", told) == told
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_empty_is_refused(tmp_path):
    save(tmp_path / "student", make_sdar())
    with pytest.raises(FileExistsError, match="is not empty"):
        export_for_engine(tmp_path / "student", "sglang", tmp_path / "student")
