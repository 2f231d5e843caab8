# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What is refused when pushing, by the Hub or before: rights, and names that are taken by something else."""

import re

import pytest
from transformers import BertForMaskedLM

from hf_dparallel import DiffusionGenerationConfig, push_model_to_hub

from .helpers import BASE, save_adapter, save_bert
from .server import Repository


@pytest.mark.parametrize("token", [None, "hf_wrong"])
def test_pushing_without_the_right_token_says_how_to_log_in(hub, adapter, monkeypatch, token):
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(OSError, match=r"Could not push to 'user/student'.*`hf auth login`"):
        push_model_to_hub(adapter, "user/student", token=token)
    assert "models/user/student" not in hub.repositories


def test_pushing_where_one_may_not_write_says_so(hub, adapter):
    with pytest.raises(OSError, match=r"may not write there.*`create_pr`"):
        push_model_to_hub(adapter, "stranger/student")


def test_a_pull_request_to_somebody_else(hub, adapter):
    push_model_to_hub(adapter, "user/student")
    before = hub.repository("user/student").files()
    commit = push_model_to_hub(save_adapter(adapter, seed=1), "user/student", create_pr=True, token="hf_stranger")
    assert commit.pr_url.endswith("/user/student/discussions/1")
    assert hub.repository("user/student").files() == before
    proposed = hub.repository("user/student").files("refs/pr/1")
    assert proposed["adapter_model.safetensors"] != before["adapter_model.safetensors"]


def test_a_name_without_owner_is_ones_own(hub, adapter, monkeypatch):
    push_model_to_hub(adapter, "student")
    assert b'from_pretrained("user/student"' in hub.repository("user/student").files()["README.md"]
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(OSError, match="`hf auth login`"):
        push_model_to_hub(adapter, "student")


@pytest.mark.parametrize("repo_id", ["a/b/c", "user/na me", "user/--"])
def test_names_that_are_none_are_refused(hub, adapter, repo_id):
    with pytest.raises(ValueError, match=f"`repo_id={repo_id}` is no name of a repository"):
        push_model_to_hub(adapter, repo_id)


def test_a_name_that_is_taken_by_something_else_is_refused(hub, adapter):
    message = (
        f"`repo_id={BASE}` exists and holds a model of type llada (LLaDAForMaskedDiffusion), and what is pushed is an"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        push_model_to_hub(adapter, BASE)
    push_model_to_hub(adapter, "user/student")
    with pytest.raises(ValueError, match=r"holds an adapter of user/teacher, and .* an adapter of user/other"):
        push_model_to_hub(adapter, "user/student", base_model="user/other")
    assert len(hub.repository("user/student").commits) == 2

    push_model_to_hub(save_adapter(adapter, seed=1), "user/student")
    assert len(hub.repository("user/student").commits) == 3


@pytest.mark.parametrize(
    ("held", "holds"),
    [
        ({"config.json": b'{"model_type": "gpt2"}', "pytorch_model.bin": b"w"}, "a model of type gpt2 (no class)"),
        ({"model.gguf": b"w"}, "weights of something else (model.gguf)"),
    ],
)
def test_another_model_is_not_overwritten(hub, tmp_path, held, holds):
    repository = hub.repositories["models/user/model"] = Repository()
    repository.files().update(held)
    DiffusionGenerationConfig(denoising_steps=2).save_pretrained(save_bert(tmp_path, BertForMaskedLM))
    with pytest.raises(ValueError, match=re.escape(f"`repo_id=user/model` exists and holds {holds}")):
        push_model_to_hub(tmp_path, "user/model")
    assert repository.files() == held


def test_a_branch_can_be_pushed_to_again_if_main_is_empty(hub, adapter):
    push_model_to_hub(adapter, "user/student", revision="v1")
    push_model_to_hub(save_adapter(adapter, seed=1), "user/student", revision="v1")
    repository = hub.repository("user/student")
    assert repository.files() == {}
    assert repository.files("v1")["adapter_model.safetensors"] == (adapter / "adapter_model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="holds an adapter of user/teacher"):
        push_model_to_hub(adapter, "user/student", base_model="user/other", revision="v1")
