# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel chat`, with lines from a pipe and at a terminal."""

import io
import os
import pty
import re
import select
import sys
import time

import pytest

from hf_dparallel_cli import main

from ..helpers import make_llada, make_tokenizer, read_json
from ..processes import Program
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
        return code, out.splitlines(), [line for line in err.splitlines() if line and "Loading weights" not in line]

    return run


def test_answers_know_the_conversation(talk, checkpoint):
    first, nfe = answer(checkpoint, "5 6")
    second, _ = answer(checkpoint, "5 6", first, "7")
    code, out, err = talk("5 6", "", "7", "/clear", "7", flags=["--json", "chat.json"])
    assert code == 0 and out == [first, second, answer(checkpoint, "7")[0]]
    assert second != answer(checkpoint, "7")[0]
    assert re.fullmatch(rf"\({nfe} forward passes, \d+\.\d\d tokens per forward pass, \d+\.\d s\)", err[0])
    assert "The conversation is forgotten." in err
    answers = read_json("chat.json")["answers"]
    assert len(answers) == 3 and set(answers[0]) == {"text", "nfe", "tokens_per_forward", "num_revisions", "latency_s"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("5 \udcfc", "Error: The prompt is not UTF-8 text"),
        ("/clear", "The conversation is forgotten."),
        ("/foo", "There is no /foo. /clear forgets the conversation"),
        ("<mask>", "Error: `input_ids` contains the mask token"),
    ],
)
def test_commands_and_mistakes_change_no_answer(talk, checkpoint, line, message):
    code, out, err = talk(line, "5 6", "exit", "7")
    assert code == 0 and err[0].startswith(message) and out[-1] == answer(checkpoint, "5 6")[0]


def test_system_prompt_stays_when_the_conversation_is_cleared(talk, checkpoint):
    _, out, _ = talk("5 6", "/clear", "5 6", flags=["--system_prompt", "9 9 9"])
    assert out == [answer(checkpoint, "9 9 9", "5 6")[0]] * 2


def test_a_conversation_that_is_too_long_says_so(talk, checkpoint):
    code, out, err = talk("5 " * 2040, "5 6", "5 " * 2035)
    assert code == 0 and err[0].startswith("Error: The conversation has 2041 tokens and the answer may have 8, ")
    assert "together more" in err[0]
    assert out == [answer(checkpoint, "5 6")[0]]  # it is not part of the conversation
    assert "/clear forgets the conversation" in err[-1]


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


# A session of its own, so that ^C is a signal to it; the tests may run in the background, where it is ignored.
_AT_A_TERMINAL = """
import os, signal, sys
terminal = os.open(sys.argv.pop(1), os.O_RDWR)
for descriptor in range(3):
    os.dup2(terminal, descriptor)
sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", buffering=1), open(2, "w", buffering=1)
signal.signal(signal.SIGINT, signal.default_int_handler)
from hf_dparallel_cli import main
sys.exit(main(sys.argv[1:]))
"""


class Session:
    """A program at a terminal."""

    def __init__(self, *argv: str):
        self.terminal, self.child = pty.openpty()
        size = {"COLUMNS": "60", "LINES": "20"}
        self.process = Program(_AT_A_TERMINAL, os.ttyname(self.child), *argv, TERM="xterm", **size)
        self.text = ""

    def read_until(self, text: str, seconds: float = 120) -> str:
        """Returns what is written up to `text`."""
        end = time.monotonic() + seconds
        while text not in self.text:
            assert time.monotonic() < end, f"no {text!r} in {self.text!r}"
            if select.select([self.terminal], [], [], 1)[0]:
                self.text += os.read(self.terminal, 4096).decode()
        seen, _, self.text = self.text.partition(text)
        return seen

    def send(self, text: str) -> None:
        os.write(self.terminal, text.encode())


def test_at_a_terminal(checkpoint):
    session = Session("chat", checkpoint, "--max_new_tokens", "1024", "--block_length", "1024")
    try:
        session.read_until("/clear forgets the conversation")
        session.read_until("> ")
        session.send("5 6\n")
        # A draft, in yellow; then ^C in the middle of a thousand passes.
        session.read_until("\033[33m")
        session.send("\x03")
        session.read_until("(stopped)")
        session.read_until("> ")
        session.send("/clear\n")
        session.read_until("The conversation is forgotten.")
        session.send("\x04")
        assert session.process.wait(60) == 0
    finally:
        session.process.kill()
        os.close(session.terminal)
        os.close(session.child)
