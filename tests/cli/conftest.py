# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A tiny checkpoint, and the command line, run in an empty folder."""

import logging

import pytest

from hf_dparallel import cli

from ..helpers import make_llada, make_tokenizer


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
    # A server has its log go to the stderr of its test.
    for name, value in (("handlers", []), ("propagate", True)):
        monkeypatch.setattr(logging.getLogger("hf_dparallel"), name, value)


@pytest.fixture
def hf(capsys):
    """Runs `hf-dparallel`; returns the exit code, stdout and stderr."""

    def run(*argv):
        try:
            code = cli.main([str(argument) for argument in argv])
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr()

    return run
