# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What stands of an answer while it is decoded: the tokens of its open blocks, in whatever order they are decided."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from ..generation.canvas import Canvas, FinishedRow


@dataclass
class Draft:
    """A part of an answer as it stands after a pass. It takes the place of all that was known from `start` on.

    Args:
        start (`int`): number of its first token in the answer.
        tokens (`list[int]`): its tokens.
        commit_step (`list[int]`): the pass that committed each of them, -1 where there is a mask.
    """

    start: int
    tokens: list[int]
    commit_step: list[int]

    def cut(self, max_tokens: int) -> "Draft":
        """The same of an answer of at most `max_tokens` tokens."""
        length = max(max_tokens - self.start, 0)
        return Draft(self.start, self.tokens[:length], self.commit_step[:length])


class DraftReader:
    """Reads from a canvas what can have changed in a row since it was last read.

    That is the blocks that were open then, and what has opened since: a decided token may change until the row has
    left its block.
    """

    def __init__(self) -> None:
        self._start = 0

    def read(self, state: Canvas | FinishedRow, row_id: int) -> Draft:
        """Reads a row: from the canvas, or as it is finished."""
        return self._rest(state) if isinstance(state, FinishedRow) else self._open(state, row_id)

    def _open(self, canvas: Canvas, row_id: int) -> Draft:
        row = canvas.row_ids.index(row_id)
        first = canvas.answer_start(row)
        open_from, end = canvas.open_edges(row)
        columns = slice(first + self._start, end)
        tokens = canvas.sequences[row, columns]
        commit_step = torch.where(canvas.masked[row, columns], -1, canvas.commit_step[row, columns])
        draft = Draft(self._start, *torch.stack([tokens, commit_step]).tolist())
        # The first block may begin in the prompt.
        self._start = max(open_from - first, 0)
        return draft

    def _rest(self, row: FinishedRow) -> Draft:
        columns = slice(self._start, row.num_tokens)
        return Draft(self._start, row.tokens[columns].tolist(), row.commit_step[columns].tolist())


class DraftText:
    """Says drafts of an answer in text, token by token.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): decodes the tokens, without special tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self._tokenizer = tokenizer
        # The tokens before the next draft.
        self._tokens: list[int] = []

    def tokens(self, draft: Draft) -> list[dict[str, Any]]:
        """The text of each token and the pass that committed it; `None` for both where there is a mask.

        Of a character that several tokens make up, the last of them has the text.
        """
        said: list[dict[str, Any]] = []
        # What a token follows says whether it begins with a space; half a character is joined to the other half.
        before = self._tokens[: draft.start][-1:]
        half: list[int] = []
        for position, (token, step) in enumerate(zip(draft.tokens, draft.commit_step, strict=True), draft.start):
            if step < 0:
                said.append({"text": None, "commit_step": None})
                half = []
                continue
            if position and not before:
                before = [token]
            text = self._decode([*before, *half, token])[len(self._decode(before)) :]
            is_half = text.endswith("\ufffd")
            said.append({"text": "" if is_half else text, "commit_step": step})
            before, half = (before, [*half, token]) if is_half else ([token], [])
        self._tokens = [*self._tokens[: draft.start], *draft.tokens]
        return said

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
