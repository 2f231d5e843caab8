# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What goes wrong between here and the Hub when pushing: rights, names, broken connections, rate limits."""

import json
import re
import shutil

import huggingface_hub
import pytest
from transformers import AutoConfig, AutoModelForMaskedLM, BertConfig, BertForMaskedLM

from hf_dparallel import DiffusionGenerationConfig, push_model_to_hub
from hf_dparallel.generation.configuration import recipe_of

from .conftest import BASE, TEACHER, save_adapter
from .server import Repository


# Rights


def test_private_repositories_need_a_token(hub, adapter, monkeypatch):
    push_model_to_hub(adapter, "user/secret", private=True)
    assert hub.repository("user/secret").private
    AutoModelForMaskedLM.from_pretrained("user/secret")

    monkeypatch.delenv("HF_TOKEN")
    shutil.rmtree(huggingface_hub.constants.HF_HUB_CACHE)
    with pytest.raises(OSError, match="user/secret"):
        AutoModelForMaskedLM.from_pretrained("user/secret")
    AutoModelForMaskedLM.from_pretrained("user/secret", token="hf_owner")
    model = AutoModelForMaskedLM.from_pretrained(TEACHER)
    shutil.rmtree(huggingface_hub.constants.HF_HUB_CACHE)
    with pytest.raises(OSError, match="user/secret"):
        model.load_adapter("user/secret", token="hf_stranger")
    model.load_adapter("user/secret", token="hf_owner")
    assert recipe_of(model).entropy_threshold == 0.4


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


# Names


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


def save_bert(folder):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    # As many words as the tokenizer of the teacher has, whose adapters are pushed beside it.
    vocab_size = AutoConfig.from_pretrained(TEACHER).vocab_size
    BertForMaskedLM(BertConfig(vocab_size=vocab_size, mask_token_id=1, **sizes)).save_pretrained(folder)
    DiffusionGenerationConfig(max_new_tokens=8, block_length=8, denoising_steps=2).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("held", "holds"),
    [
        ({"config.json": b'{"model_type": "gpt2"}', "pytorch_model.bin": b"w"}, "a model of type gpt2 (no class)"),
        (
            {"config.json": b'{"model_type": "bert", "architectures": ["BertForQuestionAnswering"]}'},
            "a model of type bert (BertForQuestionAnswering)",
        ),
        ({"unet/weights.bin": b"w"}, "weights of something else (unet/weights.bin)"),
        ({"model.gguf": b"w"}, "weights of something else (model.gguf)"),
    ],
)
def test_another_model_is_not_overwritten(hub, tmp_path, held, holds):
    repository = hub.repositories["models/user/model"] = Repository()
    repository.files().update(held)
    with pytest.raises(ValueError, match=re.escape(f"`repo_id=user/model` exists and holds {holds}")):
        push_model_to_hub(save_bert(tmp_path / "bert"), "user/model")
    assert repository.files() == held


def test_a_branch_can_be_pushed_to_again_if_main_is_empty(hub, adapter):
    push_model_to_hub(adapter, "user/student", revision="v1")
    push_model_to_hub(save_adapter(adapter, seed=1), "user/student", revision="v1")
    repository = hub.repository("user/student")
    assert repository.files() == {}
    assert repository.files("v1")["adapter_model.safetensors"] == (adapter / "adapter_model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="holds an adapter of user/teacher"):
        push_model_to_hub(adapter, "user/student", base_model="user/other", revision="v1")


def test_a_branch_is_created(hub, adapter):
    push_model_to_hub(adapter, "user/student")
    first = hub.repository("user/student").files()
    push_model_to_hub(save_adapter(adapter, seed=1), "user/student", revision="v2")
    assert hub.repository("user/student").files() == first
    second = hub.repository("user/student").files("v2")
    assert second["adapter_model.safetensors"] != first["adapter_model.safetensors"]


# Connections


def test_an_upload_that_fails_leaves_nothing_half_and_can_be_repeated(hub, adapter):
    hub.fail("POST", "/commit/main", status=500, times=100)
    with pytest.raises(OSError, match="Could not push to 'user/student'"):
        push_model_to_hub(adapter, "user/student")
    assert hub.repository("user/student").files() == {}
    uploads = hub.count("^PUT /lfs/")

    hub.faults.clear()
    push_model_to_hub(adapter, "user/student")
    assert uploads == hub.count("^PUT /lfs/") == 1  # what was there was not sent again
    AutoModelForMaskedLM.from_pretrained("user/student")


def test_a_rate_limit_that_stays_is_named(hub, adapter):
    hub.fail("POST", "/repos/create", status=429, times=100, Retry_After="1")
    with pytest.raises(OSError, match=r"Too many requests: wait.*429"):
        push_model_to_hub(adapter, "user/student")


def test_a_repository_that_exists_empty_is_filled(hub, adapter):
    hub.repositories["models/user/student"] = Repository(private=True)
    push_model_to_hub(adapter, "user/student", private=False)
    assert hub.repository("user/student").private  # as in huggingface_hub, only a new one is made private or not
    assert json.loads(hub.repository("user/student").files()["adapter_config.json"])["r"] == 4
