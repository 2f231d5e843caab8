# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel push`, and the other commands on what it has published."""

import re

import pytest
from transformers import AutoTokenizer

from ..helpers import read_json
from ..hub.helpers import BASE, TEACHER


PROMPT = "Mia has 14 pens. Mia finds 6 more. Mia sells 5 pens. How many pens are left?"


def test_push_then_generate_with_the_recipe(hub, adapter, hf):
    AutoTokenizer.from_pretrained(TEACHER).save_pretrained(adapter)
    flags = ["--dataset", "demo", "--num_samples", 2, "--max_new_tokens", 32, "--json", "r.json"]
    assert hf("evaluate", BASE, "--adapter", adapter, *flags)[0] == 0
    flags = "--report r.json --max_new_tokens 64 --block_length 32 --private --revision v1"
    code, out, _ = hf("push", adapter, "user/student", *flags.split())
    repository = hub.repository("user/student")
    assert code == 0 and repository.private and repository.commit("v1") in out
    assert b'"max_new_tokens": 64' in repository.files("v1")["generation_config.json"]
    assert b"| Method" in repository.files("v1")["README.md"]

    # The base model has the tokenizer, which is found there.
    assert hf("push", adapter, "user/student")[0] == 0
    code, answer, _ = hf("generate", "user/student", PROMPT, "--json", "a.json")
    local = hf("generate", adapter, PROMPT, "--json", "b.json")
    by_adapter = hf("generate", BASE, "--adapter", "user/student", PROMPT, "--json", "c.json")
    assert code == 0 and (code, answer) == local[:2] == by_adapter[:2]
    passes = [read_json(f"{name}.json")["nfe"] for name in "abc"]
    assert passes[0] == passes[1] == passes[2] < 32  # a rule of the recipe, not one token in each pass


def test_a_dry_run_shows_what_would_be_pushed_without_the_network(hub, adapter, hf):
    code, out, err = hf("push", adapter, "user/new", "--dry_run", "--private")
    assert code == 0 and "Nothing was sent" in err and "\n# new\n" in out
    assert not hub.requests
    hf("push", adapter, "user/new")
    for name, content in hub.repository("user/new").files().items():
        assert re.search(rf"^{re.escape(name)} +{len(content):,} bytes$", out, flags=re.MULTILINE)


def test_the_name_that_is_reported_has_the_owner(hub, adapter, hf):
    code, out, _ = hf("push", adapter, "student")
    assert code == 0 and "user/student" in out


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        ("", 2, "Missing argument 'PATH'"),
        ("folder", 2, "Missing argument 'REPO_ID'"),
        ("folder user/name --seed 1", 2, "No such option '--seed'"),
        ("folder user/name", 1, "`folder` holds no weights in safetensors"),
        ("adapter user/student --report missing.json", 1, "missing.json"),
        ("adapter user/na?me", 1, "user/na?me"),
        ("adapter stranger/student", 1, "You don't have the rights"),
    ],
)
def test_what_goes_wrong_is_one_line(hub, adapter, hf, argv, code, message):
    result, out, err = hf("push", *argv.split())
    assert (result, out) == (code, "")
    last_line = err.splitlines()[-1]
    assert last_line.startswith("hf-dparallel push: error: ") and message in last_line
