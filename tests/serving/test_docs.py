# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The clients on the documentation page and under examples/ run as they stand, against a server of the teacher."""

import copy
import dataclasses
import re
import runpy
import subprocess
import sys

import pytest
from transformers import AutoTokenizer

from hf_dparallel.serving.api import Completion

from ..pages import ROOT, python_blocks
from .helpers import running


PAGE = ROOT / "docs" / "serving.md"
URL = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def server(served):
    with running(served) as server:
        yield server


def test_the_openai_client(server, capsys):
    source, _ = python_blocks(PAGE)
    exec(source.replace(URL, server.url), {})
    text, cost = capsys.readouterr().out.splitlines()
    assert text.endswith(".") and len(text.split()) > 10 and re.fullmatch(r"\d+ \d+\.\d+", cost)


def test_a_template_that_continues_text(served, tmp_path):
    _, source = python_blocks(PAGE)
    exec(source, {"tokenizer": copy.copy(served.tokenizer), "folder": tmp_path})
    plain = dataclasses.replace(served, tokenizer=AutoTokenizer.from_pretrained(tmp_path))
    prompt = Completion({"messages": [{"role": "user", "content": "Mia has 14 pens ."}]}, plain).prompt
    assert prompt.input_ids.tolist() == served.tokenizer("Mia has 14 pens .", add_special_tokens=False)["input_ids"]


def test_curl(server):
    (command,) = re.findall(r"^```bash\n(curl .*?)```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    out = subprocess.run(["bash", "-c", command.replace(URL, server.url)], capture_output=True, text=True, timeout=60)
    assert out.stdout.startswith("data: ") and out.stdout.endswith("data: [DONE]\n\n")


def test_the_example(server, capsys, monkeypatch):
    questions = ["Mia has 14 pens. Mia finds 6 more. How many pens are left?", "Ben has 3 keys."]
    argv = ["serve.py", "--url", server.url, "--entropy_threshold", "0.5", "--questions", *questions]
    monkeypatch.setattr(sys, "argv", argv)
    runpy.run_path(str(ROOT / "examples" / "serve.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert [lines[0], lines[3]] == questions and lines[1].endswith(".")
    assert all(re.fullmatch(r"  \d+ forward passes, \d+\.\d+ tokens per pass", line) for line in lines[2::3])
