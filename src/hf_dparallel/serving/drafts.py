# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What stands of an answer while it is decoded: the tokens of its open blocks, in whatever order they are decided."""

from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from ..generation.canvas import Canvas
from .followers import Draft, Follower, Progress


class DraftReader(Follower):
    """Reads from the canvas, after each pass, what can have changed in a row.

    These are the blocks that were open before and what has opened since: a decided token may change until the row has
    left its block.

    Args:
        max_tokens (`int`): the answer ends after so many tokens at the latest.
    """

    def __init__(self, max_tokens: int):
        self.max_tokens = max_tokens
        self._start = 0
        self._draft: Draft | None = None

    def after(self, canvas: Canvas, row: int) -> None:
        first, status = canvas.answer_start(row), canvas.status[row]
        open_from, end = canvas.open_edges(row)
        length = self.max_tokens
        if status.is_finished:
            length, end = min(length, status.length, status.length_to_eos), canvas.answer(row).stop
        columns = slice(first + self._start, min(first + length, end))
        tokens = canvas.sequences[row, columns]
        commit_step = torch.where(canvas.masked[row, columns], -1, canvas.commit_step[row, columns])
        self._draft = Draft(self._start, *torch.stack([tokens, commit_step]).tolist())
        # The first block may begin in the prompt.
        self._start = max(open_from - first, 0)

    def tell(self, progress: Progress, start: int, end: int) -> None:
        progress.draft = self._draft


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
