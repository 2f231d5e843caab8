# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel push`, and the other commands on what it has published."""

import pytest
from huggingface_hub import ModelCard
from transformers import AutoTokenizer

from ..helpers import edit_json, read_json
from ..hub.helpers import BASE, TEACHER


PROMPT = "Mia has 14 pens. Mia finds 6 more. Mia sells 5 pens. How many pens are left?"


def test_push_then_generate_with_the_recipe(hub, adapter, hf):
    AutoTokenizer.from_pretrained(TEACHER).save_pretrained(adapter)
    flags = ["--dataset", "demo", "--num_samples", 2, "--json", "r.json"]
    assert hf("evaluate", "--model", BASE, "--adapter", adapter, *flags)[0] == 0
    flags = "--report r.json --max_new_tokens 64 --block_length 32 --private --revision v1 --commit_message First"
    code, out, _ = hf("push", adapter, "user/student", *flags.split(), "--json", "push.json")
    figures = read_json("push.json")
    assert code == 0 and figures["url"] in out
    repository = hub.repository("user/student")
    assert repository.private and repository.commit("v1") == figures["commit"]
    assert b'"max_new_tokens": 64' in repository.files("v1")["generation_config.json"]
    assert b"On demo (2 prompts)" in repository.files("v1")["README.md"]

    # The base model has the tokenizer, which is found there.
    assert hf("push", adapter, "user/student")[0] == 0
    code, answer, _ = hf("generate", "--model", "user/student", "--prompt", PROMPT, "--json", "a.json")
    local = hf("generate", "--model", adapter, "--prompt", PROMPT, "--json", "b.json")
    by_adapter = hf("generate", "--model", BASE, "--adapter", "user/student", "--prompt", PROMPT, "--json", "c.json")
    assert code == 0 and (code, answer) == local[:2] == by_adapter[:2]
    passes = [read_json(f"{name}.json")["nfe"] for name in "abc"]
    assert passes[0] == passes[1] == passes[2] < 32  # a rule of the recipe, not one token in each pass


def test_a_dry_run_shows_what_would_be_pushed_without_the_network(hub, adapter, hf):
    code, out, err = hf("push", adapter, "user/new", "--dry_run", "--private", "--json", "files.json")
    assert code == 0 and "Nothing was sent" in err and "\n# new\n" in out
    assert not hub.requests
    hf("push", adapter, "user/new")
    pushed = {name: len(content) for name, content in hub.repository("user/new").files().items()}
    assert read_json("files.json") == {"repo_id": "user/new", "files": pushed}


def test_a_dry_run_without_a_base_on_the_hub_says_that_a_push_needs_it(hf, adapter):
    edit_json(adapter / "adapter_config.json", base_model_name_or_path=str(TEACHER))
    code, out, err = hf("push", adapter, "user/new", "--dry_run")
    assert code == 0 and "base_model: NAME-OF-THE-BASE-MODEL" in out and "To push, name the base model" in err
    code, _, err = hf("push", adapter, "user/new")
    assert code == 1 and "`--base_model GSAI-ML/LLaDA-8B-Instruct`" in err


def test_an_answer_of_generate_is_an_example(hub, adapter, hf):
    assert hf("generate", "--model", adapter, "--prompt", PROMPT, "--json", "a.json")[0] == 0
    code, out, _ = hf("push", adapter, "user/student", "--example", "a.json", "--dry_run")
    (shown,) = ModelCard(out).data.widget
    assert code == 0 and shown["messages"] == [{"role": "user", "content": PROMPT}] and shown["output"]["text"]


def test_the_name_that_is_reported_has_the_owner(hub, adapter, hf):
    code, out, _ = hf("push", adapter, "student", "--json", "push.json")
    assert code == 0 and "user/student" in out
    assert read_json("push.json")["repo_id"] == "user/student"


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        ("", 2, "Missing argument 'PATH'"),
        ("folder", 2, "Missing argument 'REPO_ID'"),
        ("folder user/name --seed 1", 2, "No such option '--seed'"),
        ("folder user/name", 1, "`folder` is no folder"),
        ("adapter user/student --report missing.json", 1, "missing.json"),
        ("adapter user/student --example missing.json --dry_run", 1, "missing.json"),
        ("adapter user/na?me --dry_run", 1, "`repo_id=user/na?me` is no name of a repository"),
        ("adapter stranger/student", 1, "The token may not write there"),
    ],
)
def test_what_goes_wrong_is_one_line(hub, adapter, hf, argv, code, message):
    result, out, err = hf("push", *argv.split())
    assert (result, out) == (code, "")
    last_line = err.splitlines()[-1]
    assert last_line.startswith("hf-dparallel push: error: ") and message in last_line
