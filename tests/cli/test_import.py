# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`--import FILE`: a commit rule of one's own on the command line, as docs/add_a_rule.md shows it."""

from pathlib import Path

import pytest

from ..helpers import read_json
from ..pages import ROOT, rules_of_files
from .helpers import answer, last_line, load


KLASS = ROOT / "examples" / "klass_rule.py"
FLAGS = ["--max_new_tokens", "8", "--block_length", "4"]


@pytest.fixture(autouse=True)
def margin_rule():
    with rules_of_files():
        yield
    # Its recipe has a place for each setting of then.
    load.cache_clear()


@pytest.mark.parametrize("words", [("--import", "margin_rule.py"), ("--import=./margin_rule.py",)])
def test_a_rule_of_a_file_decodes(hf, checkpoint, words):
    asked = ["generate", *words, checkpoint, "5 6", *FLAGS, "--margin_threshold", "0.2", "--json", "g.json"]
    assert hf(*asked)[0] == 0
    figures = read_json("g.json")
    expected = answer(checkpoint, "5 6", entropy_threshold=None, margin_threshold=0.2)
    assert (figures["text"], figures["nfe"]) == expected


def test_a_rule_of_a_file_is_swept_and_saved(hf, asked):
    imported = ["--import", "margin_rule.py", "--import", KLASS]
    swept = ["--sweep", "margin_threshold=0.2,0.9", "--sweep", "kl_threshold=0.5"]
    code, out, _ = hf("evaluate", *asked, *FLAGS, *imported, *swept)
    assert code == 0 and all(name in out for name in ("margin_threshold 0.2", "margin_threshold 0.9", "kl_threshold"))


def test_the_help_and_a_file_of_options_know_the_rule(hf, checkpoint):
    out = hf("chat", "--import", "margin_rule.py", "--help")[1]
    assert "--margin_threshold" in out and "--import FILE" in out
    Path("config.yaml").write_text(f"model: {checkpoint}\nprompt: 5 6\nmargin_threshold: 0.2\nmax_new_tokens: 8\n")
    assert hf("generate", "--config", "config.yaml", "--import", "margin_rule.py")[0] == 0


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        ("generate m x --margin_threshold 0.2", 2, "No such option '--margin_threshold'"),
        ("generate m x --import", 2, "Option '--import' requires an argument."),
        ("--import margin_rule.py generate m x", 2, "No such option '--import'. Options stand after the command."),
        ("generate m x --import missing.py", 1, "missing.py'"),
        ("generate m x --import wrong.py", 1, "SyntaxError"),
        ("generate m x --import margin_rule.py --margin_threshold 2", 2, "`margin_threshold` must be a difference"),
        ("train m --import missing.py", 1, "missing.py'"),
        ("train m --dataset d --import margin_rule.py --learning-rat 1", 2, "Did you mean `learning_rate`?"),
        ("generate --config config.yaml", 2, "`import` is for the command line, as --import FILE."),
    ],
)
def test_what_cannot_be_imported_is_said_in_a_line(hf, argv, code, message):
    Path("wrong.py").write_text("def")
    Path("config.yaml").write_text("model: m\nprompt: x\nimport: margin_rule.py\n")
    ended, _, err = hf(*argv.split())
    assert ended == code and message in last_line(err) and "Traceback" not in err
