# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A tiny checkpoint, and the command line, run in an empty folder."""

import re

import pytest

from hf_dparallel_cli import main

from ..helpers import make_llada, make_tokenizer, write_jsonl
from .helpers import write_questions


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("llada")
    make_llada(max_sequence_length=2048).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_DPARALLEL_DEBUG", raising=False)


@pytest.fixture
def hf(capsys):
    """Runs `hf-dparallel`; returns the exit code, stdout and stderr."""

    def run(*argv):
        try:
            code = main([str(argument) for argument in argv])
        except SystemExit as stop:
            code = stop.code
        out, err = capsys.readouterr()
        # What all commands say first that load a model.
        return code, out, re.sub(r"^Loading .* \.\.\.\n", "", err)

    return run


@pytest.fixture
def questions(tmp_path, checkpoint) -> str:
    return write_questions(tmp_path, checkpoint, [f"{number} 5 {number + 1}" for number in range(8)])


@pytest.fixture
def asked(checkpoint, questions) -> list[str]:
    return [checkpoint, "--dataset", questions, "--prompt_column", "question"]


@pytest.fixture
def completions(tmp_path) -> str:
    rows = [{"prompt_ids": [0, n + 2], "completion_ids": [n + 3, n + 4, n + 5, 1]} for n in range(20)]
    return write_jsonl(tmp_path / "completions.jsonl", rows)
