# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Drafts in place: what a terminal shows after everything that the streamer writes."""

import io
import re
import unicodedata
from itertools import groupby

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_dparallel.cli.answer_streamer import AnswerStreamer
from hf_dparallel.terminal import flow, printable


class Screen:
    """A terminal with the few control sequences that are used, and what has scrolled out of it."""

    def __init__(self, columns: int, rows: int):
        self.columns, self.rows = columns, rows
        self.lines, self.row, self.column = [[]], 0, 0

    def feed(self, text: str) -> None:
        for number, code, char in re.findall(r"\033\[([\d;]*)([AGJm])|([^\033])", text):
            if char == "\n":
                self._next_row()
            elif char == "\r":
                self.column = 0
            elif char:
                self._put(char)
            elif code == "A":
                top = max(len(self.lines) - self.rows, 0)
                self.row = max(self.row - int(number), top)
            elif code == "G":
                self.column = int(number) - 1
            elif code == "J":
                del self.lines[self.row + 1 :], self.lines[self.row][self.column :]

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


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(text, st.none() | text.filter(bool)), max_size=6), st.integers(5, 12), st.integers(2, 6))
def test_a_terminal_shows_the_decided_text_and_the_draft_behind_it(passes, columns, rows):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("COLUMNS", columns), ("LINES", rows), ("TERM", "xterm")):
            patch.setenv(name, str(value))
        check_passes(passes, columns, rows)


def check_passes(passes, columns, rows):
    out, screen, decided = Terminal(), Screen(columns, rows), ""
    streamer = AnswerStreamer(Characters(), out)
    streamer.put(encode("the prompt"))

    def shown() -> str:
        screen.feed(out.getvalue())
        out.seek(0)
        out.truncate()
        return screen.text()

    def plain(*texts: str) -> str:
        expected = Screen(columns, rows)
        for part in texts:
            expected.feed(part)
        return expected.text()

    for new, draft in passes:
        if new:
            decided += new
            streamer.put(encode(new))
            assert shown() == plain(decided)
        if draft is not None:
            streamer.put_draft(value=encode(draft))
            draft = " ".join(draft.splitlines())
            column = flow(decided, 0, columns)[1]
            while flow(draft, column, columns)[0] >= rows:
                draft = draft[:-1]
            assert shown() == plain(decided, draft)
    streamer.end()
    assert shown() == plain(decided) and streamer.text == decided


@pytest.mark.parametrize(("lines", "shown"), [("6", "one two\nthree four"), ("2", "one two th\nree four")])
def test_a_finished_answer_is_coloured_by_pass_and_wrapped_at_words(monkeypatch, lines, shown):
    for name, value in (("COLUMNS", "10"), ("LINES", lines), ("TERM", "xterm-256color")):
        monkeypatch.setenv(name, value)
    out, screen = Terminal(), Screen(10, int(lines))
    streamer = AnswerStreamer(Characters(), out)
    for text in ("the prompt", "one two ", "three four"):
        streamer.put(encode(text))
    streamer.end()
    streamer.show_passes([0] * 8 + [1] * 10, 2)
    screen.feed(out.getvalue())
    assert screen.text() == shown
    colors = [color for color, _ in groupby(re.findall(r";48;5;(\d+)m", out.getvalue()))]
    assert len(colors) == len(set(colors)) == (2 if lines == "6" else 0)


def test_a_terminal_may_change_its_width(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "10")
    out = Terminal()
    streamer = AnswerStreamer(Characters(), out)
    streamer.put(encode("prompt"))
    streamer.put(encode("abcdefgh"))
    streamer.put_draft(encode("ijklmnop"))
    # Now both fill four rows, of which the draft begins in the second.
    monkeypatch.setenv("COLUMNS", "5")
    out.seek(0)
    out.truncate()
    streamer.put(encode("X"))
    assert out.getvalue() == "\033[2A\033[4G\033[JX"


def test_elsewhere_the_text_is_plain(monkeypatch):
    for out in (io.StringIO(), Terminal()):
        monkeypatch.setenv("TERM", "dumb")
        streamer = AnswerStreamer(Characters(), out)
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
    streamer = AnswerStreamer(Characters(), out)
    streamer.put(encode("prompt"))
    streamer.put(encode("a\033]0;title\007\x9b2Jb\r\tc"))
    streamer.end()
    assert out.getvalue() == r"a\x1b]0;title\x07\x9b2Jb    c" + "\n"
    assert printable("é漢\u200d\n") == "é漢\u200d\n"


def test_flow():
    assert flow("", 3, 10) == (0, 3)
    assert flow("abc", 8, 10) == (1, 1)
    assert flow("ab", 8, 10) == (0, 10)  # at the right edge, not yet in the next row
    assert flow("漢", 9, 10) == (1, 2)
    assert flow("ab\nc", 8, 10) == (1, 1)
    assert flow("e\u0301", 0, 10) == (0, 1)
