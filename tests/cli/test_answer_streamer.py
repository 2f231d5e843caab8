# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Drafts in place: what a terminal shows after everything that the streamer writes."""

import io
import re
import unicodedata

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_dparallel.inspection.text import printable
from hf_dparallel_cli.answer_streamer import AnswerStreamer


class Screen:
    """A terminal with the few control sequences that are used, and what has scrolled out of it."""

    def __init__(self, columns: int, rows: int):
        self.columns, self.rows = columns, rows
        self.lines, self.row, self.column = [[]], 0, 0

    def feed(self, text: str) -> None:
        for number, code, char in re.findall(r"\033\[([\d;?]*)([AKhlm])|([^\033])", text):
            if char == "\n":
                self._next_row()
            elif char == "\r":
                self.column = 0
            elif char:
                self._put(char)
            elif code == "A":
                top = max(len(self.lines) - self.rows, 0)
                self.row = max(self.row - int(number), top)
            elif code == "K":
                self.lines[self.row] = []

    def _put(self, char: str) -> None:
        width = 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if self.column + width > self.columns:
            self._next_row()
        line = self.lines[self.row]
        line.extend(" " * (self.column + width - len(line)))
        line[self.column : self.column + width] = [char, *[""] * (width - 1)]
        self.column += width

    def _next_row(self) -> None:
        self.row, self.column = self.row + 1, 0
        if self.row == len(self.lines):
            self.lines.append([])

    def text(self) -> str:
        return "\n".join("".join(line).rstrip() for line in self.lines).rstrip()


class Characters:
    """A tokenizer of one token a character."""

    def decode(self, tokens, **kwargs):
        return "".join(map(chr, tokens))


class Terminal(io.StringIO):
    def isatty(self):
        return True


def encode(text: str) -> torch.Tensor:
    return torch.tensor([ord(char) for char in text], dtype=torch.long)


text = st.text(alphabet="ab 漢\n", max_size=30)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(text, st.none() | text.filter(bool)), max_size=6), st.integers(5, 12), st.integers(2, 6))
def test_a_terminal_shows_the_decided_text_and_the_draft_behind_it(passes, columns, rows):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("COLUMNS", columns), ("LINES", rows), ("TERM", "xterm")):
            patch.setenv(name, str(value))
        check_passes(passes, columns, rows)


def check_passes(passes, columns, rows):
    """Words are wrapped: texts are compared without spaces."""
    out, screen, decided = Terminal(), Screen(columns, rows), ""
    screen.feed("> 5 6\n")

    def check(expected: str) -> None:
        screen.feed(out.getvalue())
        out.seek(0)
        out.truncate()
        shown, expected = "".join(screen.text().split()), "> 5 6" + expected
        if len(screen.lines) <= rows:
            assert shown == "".join(expected.split())
        else:
            assert "".join(expected.split()).endswith("".join("".join(map("".join, screen.lines[-rows:])).split()))

    with AnswerStreamer(Characters(), out) as streamer:
        streamer.put(encode("the prompt"))
        for new, draft in passes:
            if new:
                decided += new
                streamer.put(encode(new))
                check(decided)
            if draft is not None:
                streamer.put_draft(value=encode(draft))
                check(decided + draft)
        streamer.end()
    screen.feed(out.getvalue())
    assert "".join(screen.text().split()) == "".join(("> 5 6" + decided).split()) and streamer.text == decided


@pytest.mark.parametrize("lines", ["6", "2"])
def test_a_finished_answer_is_coloured_by_pass_and_wrapped_at_words(monkeypatch, lines):
    for name, value in (("COLUMNS", "10"), ("LINES", lines), ("TERM", "xterm-256color")):
        monkeypatch.setenv(name, value)
    out, screen = Terminal(), Screen(10, int(lines))
    with AnswerStreamer(Characters(), out) as streamer:
        for text in ("the prompt", "one two ", "three four"):
            streamer.put(encode(text))
        streamer.end()
        streamer.show_passes([0] * 8 + [1] * 10, 2)
    screen.feed(out.getvalue())
    assert screen.text() == "one two\nthree four"
    assert len(set(re.findall(r"\033\[[\d;]+;(\d+)m", out.getvalue()))) == 2


def test_an_answer_that_fails_keeps_what_was_decided(monkeypatch):
    for name, value in (("COLUMNS", "40"), ("LINES", "6"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    out, screen = Terminal(), Screen(40, 6)
    with pytest.raises(KeyboardInterrupt), AnswerStreamer(Characters(), out) as streamer:
        for text in ("the prompt", "decided"):
            streamer.put(encode(text))
        streamer.put_draft(encode(" draft"))
        assert "\033[33m draft" in out.getvalue()
        raise KeyboardInterrupt
    screen.feed(out.getvalue())
    assert screen.text() == "decided" and out.getvalue().endswith("\n\033[?25h")


def test_elsewhere_the_text_is_plain(monkeypatch):
    for out in (io.StringIO(), Terminal()):
        monkeypatch.setenv("TERM", "dumb")
        with AnswerStreamer(Characters(), out) as streamer:
            streamer.put(encode("prompt"))
            streamer.put(encode("a "))
            assert out.getvalue() == "a "
            streamer.put_draft(value=encode("draft"))
            streamer.put(encode("b"))
            streamer.end()
        assert out.getvalue() == "a b\n"


def test_a_model_cannot_send_control_sequences(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    out = io.StringIO()
    with AnswerStreamer(Characters(), out) as streamer:
        streamer.put(encode("prompt"))
        streamer.put(encode("a\033]0;title\007\x9b2Jb\r\tc"))
        streamer.end()
    assert out.getvalue() == r"a\x1b]0;title\x07\x9b2Jb    c" + "\n"
    assert printable("é漢\u200d\n") == "é漢\u200d\n"
