# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel chat`, with lines from a pipe and at a terminal."""

import contextlib
import io
import os
import pty
import re
import select
import sys
import time

import pytest

from hf_dparallel import cli
from hf_dparallel.cli import chat_command as chat_module

from ..helpers import make_llada, make_tokenizer, read_json
from ..processes import Program
from .helpers import DECODING, answer


@pytest.fixture
def talk(checkpoint, monkeypatch, capsys):
    """Sends lines through a pipe; returns the exit code and the lines of stdout and stderr."""

    def run(*lines, flags=()):
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
        try:
            code = cli.main(["chat", checkpoint, *DECODING, *flags])
        except SystemExit as stop:
            code = stop.code
        out, err = capsys.readouterr()
        return code, out.splitlines(), [line for line in err.splitlines() if line and "Loading weights" not in line]

    return run


def test_answers_know_the_conversation(talk, checkpoint):
    first, nfe = answer(checkpoint, "5 6")
    second, _ = answer(checkpoint, "5 6", first, "7")
    code, out, err = talk("5 6", "", "7", "/reset", "7", flags=["--json", "chat.json"])
    assert code == 0 and out == [first, second, answer(checkpoint, "7")[0]]
    assert second != answer(checkpoint, "7")[0]
    assert re.fullmatch(rf"\({nfe} forward passes, \d+\.\d\d tokens per forward pass, \d+\.\d s\)", err[0])
    assert "The conversation is forgotten." in err
    answers = read_json("chat.json")["answers"]
    assert len(answers) == 3 and set(answers[0]) == {"text", "nfe", "tokens_per_forward", "num_revisions", "latency_s"}


def test_settings_are_changed_on_the_fly(talk, checkpoint):
    slow, many = answer(checkpoint, "5 6", entropy_threshold=0.0)
    code, out, err = talk(
        "/set entropy_threshold 0", "/settings", "5 6", "/set denoising_steps 2", "/reset", "5 6", "/settings"
    )
    assert code == 0
    assert sorted(out[:3]) == ["block_length 4", "entropy_threshold 0.0", "max_new_tokens 8"] and out[3] == slow
    assert err[:2] == ["entropy_threshold 0", err[1]] and err[1].startswith(f"({many} forward passes")
    # A commit rule replaces the one there was.
    assert err[-1].startswith("(2 forward passes") and "denoising_steps 2" in out[5:]
    assert not any(line.startswith("entropy_threshold") for line in out[5:])


def test_none_is_the_setting_of_the_model(talk):
    _, out, _ = talk("/set max_new_tokens none", "/set entropy_threshold none", "/settings")
    assert sorted(out) == ["block_length 4", "denoising_steps 256"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/set entropy_threshold x", "Error: `entropy_threshold` must be a number of nats of at least 0 (and at most"),
        ("/set entropy_threshold -1", "Error: `entropy_threshold` must be a number of nats of at least 0"),
        ("/set entropy_treshold 0.5", "Error: Unknown setting entropy_treshold. Did you mean `entropy_threshold`?"),
        ("/set block_length 0", "Error: `block_length` must be a positive integer"),
        ("/set max_new_tokens 0", "Error: `max_new_tokens` must be a positive integer, got 0."),
        ("/set eos_token_id 5", "Error: `eos_token_id` cannot be changed here."),
        ("/set temperature [", "Error: while parsing"),
        ("/set temperature", "/set needs a name and a value"),
        ("/foo", "Unknown command /foo. /help shows the commands."),
        ("/seting", "Unknown command /seting. Did you mean `/settings`? /help shows the commands."),
        ("<mask>", "Error: `input_ids` contains the mask token"),
    ],
)
def test_mistakes_change_nothing(talk, checkpoint, line, message):
    code, out, err = talk(line, "5 6")
    assert code == 0 and err[0].startswith(message)
    assert out[-1] == answer(checkpoint, "5 6")[0]


def test_an_answer_without_length_is_refused_at_once(talk):
    code, out, err = talk("5 6", flags=["--max_new_tokens", "0"])
    assert code == 2 and not out and "`max_new_tokens` must be a positive integer, got 0." in err[-1]


def test_clear_and_exit(talk):
    code, out, err = talk("5 6", "/clear", "5 6", "exit", "7")
    assert code == 0 and len(out) == 2 and out[0] == out[1] and "The conversation is forgotten." in err


def test_help_and_quit(talk):
    code, out, err = talk("/help", "/quit", "5 6")
    assert code == 0 and out == chat_module.HELP.splitlines() and not err


def test_system_prompt_survives_a_reset(talk, checkpoint):
    _, out, _ = talk("5 6", "/reset", "5 6", flags=["--system_prompt", "9 9 9"])
    assert out == [answer(checkpoint, "9 9 9", "5 6")[0]] * 2


def test_a_conversation_that_is_too_long_says_so(talk, checkpoint):
    code, out, err = talk("5 " * 2040, "5 6", "5 " * 2035)
    assert code == 0 and err[0].startswith("Error: The conversation has 2041 tokens and the answer may have 8, ")
    assert "together more" in err[0] and "Shorten the message; /set max_new_tokens makes" in err[0]
    assert out == [answer(checkpoint, "5 6")[0]]  # it is not part of the conversation
    assert "/reset forgets the conversation; /set" in err[-1]


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
    assert cli.main(["chat", str(tmp_path)]) == 1
    assert "has no chat template: it continues text and cannot chat" in capsys.readouterr().err


# A session of its own, so that ^C is a signal to it; the tests may run in the background, where it is ignored.
_AT_A_TERMINAL = """
import os, signal, sys
terminal = os.open(sys.argv.pop(1), os.O_RDWR)
for descriptor in range(3):
    os.dup2(terminal, descriptor)
sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", buffering=1), open(2, "w", buffering=1)
signal.signal(signal.SIGINT, signal.default_int_handler)
from hf_dparallel.cli import main
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

    def interrupt_until(self, text: str) -> None:
        """Presses ^C until `text` comes: readline misses one that comes between its prompt and its reading."""
        for _ in range(20):
            self.send("\x03")
            with contextlib.suppress(AssertionError):
                self.read_until(text, seconds=5)
                return
        raise AssertionError(f"no {text!r} in {self.text!r}")

    def send(self, text: str) -> None:
        os.write(self.terminal, text.encode())


def test_at_a_terminal(checkpoint):
    session = Session("chat", checkpoint, "--max_new_tokens", "1024", "--block_length", "1024")
    try:
        session.read_until("/help shows the commands.")
        session.read_until("> ")
        session.send("5 6\n")
        # A draft, in yellow; then ^C in the middle of a thousand passes.
        session.read_until("\033[33m")
        session.send("\x03")
        session.read_until("(stopped)")
        session.read_until("> ")
        session.interrupt_until("/quit or Ctrl-D ends the program.")
        for setting in ("block_length 4", "max_new_tokens 8", "entropy_threshold 0.5"):
            session.send(f"/set {setting}\n")
            session.read_until(f"\r{setting}\r\n")
        session.send("/reset\n")
        session.read_until("The conversation is forgotten.")
        # What is pasted is one message, however many lines it has.
        session.send("\033[200~5\n6\033[201~\n")
        shown = session.read_until("tokens per forward pass")
        assert "\033[33m" in shown
        session.read_until("> ")
        session.send("\x04")
        assert session.process.wait(60) == 0
    finally:
        session.process.kill()
        os.close(session.terminal)
        os.close(session.child)
