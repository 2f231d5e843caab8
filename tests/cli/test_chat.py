# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel chat`, with lines from a pipe and at a terminal."""

import io
import re
import sys

import pytest

from hf_dparallel_cli import main

from ..helpers import make_llada, make_tokenizer
from .helpers import DECODING, answer


@pytest.fixture
def talk(checkpoint, monkeypatch, capsys):
    """Sends lines through a pipe; returns the exit code and the lines of stdout and stderr."""

    def run(*lines, flags=()):
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
        try:
            code = main(["chat", checkpoint, *DECODING, *flags])
        except SystemExit as stop:
            code = stop.code
        out, err = capsys.readouterr()
        return code, out.splitlines(), [line for line in err.splitlines() if line and not line.startswith("Loading ")]

    return run


def test_answers_know_the_conversation(talk, checkpoint):
    first, nfe = answer(checkpoint, "5 6")
    second, _ = answer(checkpoint, "5 6", first, "7")
    code, out, err = talk("5 6", "", "7", "/clear", "7")
    assert code == 0 and out == [first, second, answer(checkpoint, "7")[0]]
    assert second != answer(checkpoint, "7")[0]
    assert re.fullmatch(rf"\({nfe} forward passes, \d+\.\d\d tokens per forward pass, \d+\.\d s\)", err[0])
    assert "The conversation is forgotten." in err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("5 \udcfc", "Error: The prompt is not UTF-8 text"),
        ("/clear", "The conversation is forgotten."),
        ("<mask>", "Error: `input_ids` contains the mask token"),
    ],
)
def test_commands_and_mistakes_change_no_answer(talk, checkpoint, line, message):
    code, out, err = talk(line, "5 6", "exit", "7")
    assert code == 0 and err[0].startswith(message) and out[-1] == answer(checkpoint, "5 6")[0]


def test_system_prompt_stays_when_the_conversation_is_cleared(talk, checkpoint):
    _, out, _ = talk("5 6", "/clear", "5 6", flags=["--system_prompt", "9 9 9"])
    assert out == [answer(checkpoint, "9 9 9", "5 6")[0]] * 2


def test_an_interruption_stops_the_answer_only(talk, checkpoint, monkeypatch):
    def interrupt(self, *args, **kwargs):
        passes.append(None)
        if len(passes) == 9:
            raise KeyboardInterrupt
        return forward(self, *args, **kwargs)

    passes, forward = [], type(make_llada()).forward
    monkeypatch.setattr(type(make_llada()), "forward", interrupt)
    flags = ["--entropy_threshold", "0", "--max_new_tokens", "16", "--block_length", "1"]
    code, out, err = talk("5 6", "7", flags=flags)
    monkeypatch.undo()
    settings = {"entropy_threshold": 0.0, "max_new_tokens": 16, "block_length": 1}
    whole = answer(checkpoint, "5 6", **settings)[0]
    assert code == 0 and err[0] == "(stopped)"
    assert whole.startswith(out[0]) and 0 < len(out[0].split()) <= 8 < len(whole.split())
    # What stands is part of the conversation.
    assert out[1] == answer(checkpoint, "5 6", out[0], "7", **settings)[0]


def test_a_model_without_chat_template_cannot_chat(tmp_path, monkeypatch, capsys):
    make_llada().save_pretrained(tmp_path)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    assert main(["chat", str(tmp_path)]) == 1
    assert "has no chat template: it continues text and cannot chat" in capsys.readouterr().err
