# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""An answer that appears on the terminal while it is decoded: drafts in place, and plain text where there is none."""

import os
import shutil
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import TextIO

import torch
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text
from transformers import PreTrainedTokenizerBase
from transformers.generation.streamers import BaseStreamer

from ..pass_colors import pass_style
from ..terminal import flow, printable, rows_of


_YELLOW, _PLAIN = "\033[33m", "\033[0m"


class AnswerStreamer(BaseStreamer):
    """Writes decided text as it comes and, on a terminal, the draft of what follows in yellow behind it.

    The draft is taken back by moving up the rows that it fills. transformers' `TextDiffusionStreamer` goes back to a
    saved place, which is wrong once the text has scrolled, and in tmux. `text` is the decided text so far.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, out: TextIO | None = None):
        self.text = ""
        self._tokenizer = tokenizer
        self._out = out if out is not None else sys.stdout
        self._shows_drafts = self._out.isatty() and os.environ.get("TERM") != "dumb"
        self._tokens: list[int] = []
        self._has_prompt = False
        self._draft = ""

    def put(self, value: torch.Tensor) -> None:
        """Writes decided tokens, after the prompt, which comes first."""
        if not self._has_prompt:
            self._has_prompt = True
            return
        self._tokens += value.flatten().tolist()
        # The rest of a character may follow.
        self._write_decided(self._decode(self._tokens).rstrip("\ufffd"))

    def put_draft(self, value: torch.Tensor, **kwargs) -> None:
        """Shows the current guess of what follows."""
        if not self._shows_drafts:
            return
        columns, rows = shutil.get_terminal_size()
        draft = self._decode(self._tokens + value.flatten().tolist())[len(self.text) :]
        taken_back = self._take_back()
        # What has left the screen cannot be taken back.
        column = flow(self._last_line(), 0, columns)[1]
        self._draft = "".join(rows_of(printable(" ".join(draft.splitlines())), column, columns)[:rows])[column:]
        self._write(f"{taken_back}{_YELLOW}{self._draft}{_PLAIN}")

    def end(self) -> None:
        """Takes the draft back and ends the line."""
        self._write_decided(self._decode(self._tokens))
        self._write("\n")

    def show_passes(self, commit_step: Sequence[int], num_passes: int) -> None:
        """Writes a finished answer anew, coloured by pass and wrapped at words, if all of it is on the screen."""
        columns, lines = shutil.get_terminal_size()
        rows = flow(printable(self.text), 0, columns)[0] + 1
        texts = [self._decode(self._tokens[:end]).rstrip("\ufffd") for end in range(len(self._tokens) + 1)]
        pieces = [printable(after[len(before) :]) for before, after in pairwise(texts)]
        if self._shows_drafts and rows < lines and "".join(pieces) == printable(self.text):
            styles = (pass_style(step, num_passes) for step in commit_step)
            self._write(f"\033[{rows}A\033[J")
            colored = Text.assemble(*zip(pieces, styles, strict=False))
            Console(file=self._out, width=columns).print(colored)

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _write_decided(self, text: str) -> None:
        taken_back = self._take_back() if self._shows_drafts else ""
        new, self.text = printable(text[len(self.text) :]), max(text, self.text, key=len)
        self._write(taken_back + new)

    def _take_back(self) -> str:
        """Returns what to write to get to the end of the decided text and remove all after it.

        The places follow from the texts, because a terminal wraps its lines anew when its width changes.
        """
        columns, line = shutil.get_terminal_size().columns, self._last_line()
        column = flow(line, 0, columns)[1]
        rows, self._draft = flow(self._draft, column, columns)[0], ""
        # At the right edge a terminal waits for the next character before it enters the next row. To get there again,
        # the last character has to be written again.
        at_edge = line[-1:] if column >= columns else ""
        while at_edge and not cell_len(at_edge):  # an accent
            at_edge = line[-len(at_edge) - 1 :]
        up = f"\033[{rows}A" if rows else ""
        return f"{up}\033[{column - cell_len(at_edge) + 1}G\033[J{at_edge}"

    def _last_line(self) -> str:
        return printable(self.text.rpartition("\n")[2])

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
