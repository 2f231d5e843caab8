# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A tiny checkpoint, and the command line, run in an empty folder."""

import json
import logging
from pathlib import Path

import pytest
from transformers import AutoModelForMaskedLM

from hf_dparallel import cli

from ..helpers import make_llada, make_tokenizer
from ..hub.conftest import adapter, hub, saved_adapter  # noqa: F401


DECODING = ["--max_new_tokens", "8", "--block_length", "4", "--entropy_threshold", "1.0"]


def read_json(path: str):
    return json.loads(Path(path).read_text())


def read_jsonl(path) -> list[dict]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def write_jsonl(path, rows) -> str:
    Path(path).write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def answer(checkpoint: str, *messages: str, **settings) -> tuple[str, int]:
    """What `generate` answers to a conversation, and the passes."""
    tokenizer, model = make_tokenizer(), AutoModelForMaskedLM.from_pretrained(checkpoint)
    chat = [{"role": "user", "content": message} for message in messages]
    ids = tokenizer.apply_chat_template(chat, return_dict=True, return_tensors="pt")["input_ids"]
    settings = {"max_new_tokens": 8, "block_length": 4, "entropy_threshold": 1.0} | settings
    out = model.generate(ids, return_dict_in_generate=True, **settings)
    return tokenizer.decode(out.sequences[0, ids.shape[1] :], skip_special_tokens=True), out.nfe.item()


def write_questions(folder, checkpoint: str, texts: list[str], **settings) -> str:
    """A file of questions, half of them with the answer that the model gives."""
    answers = [(answer(checkpoint, text, **settings)[0].split() or ["0"])[-1] for text in texts]
    answers[::2] = ["-1"] * len(answers[::2])
    rows = [{"question": text, "answer": last} for text, last in zip(texts, answers, strict=True)]
    return write_jsonl(folder / "questions.jsonl", rows)


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
