# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The text of an answer while its tokens come in, and the stop strings that end it."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from .followers import Progress


class AnswerText:
    """Turns tokens into text that can be sent at once: what has been returned never changes.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): decodes the tokens, without special tokens.
        stop (`Sequence[str]`): the text ends before the first of these that occurs in it.

    Attributes:
        text (`str`): what has been returned so far.
        num_tokens (`int`): tokens of the answer so far, those of a stop string included.
        finish_reason (`str`, *optional*): "stop" or "length" once nothing follows.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str] = ()):
        self.text = ""
        self.num_tokens = 0
        self.finish_reason: str | None = None
        self._tokenizer = tokenizer
        self._stop = stop
        self._tokens: list[int] = []

    def add(self, progress: Progress) -> str:
        """Takes further tokens and returns the text that is known to follow."""
        num_before, self._tokens = len(self._tokens), self._tokens + progress.tokens
        self.num_tokens, self.finish_reason = len(self._tokens), progress.finish_reason
        text = self._decode(self.num_tokens)
        if self._find_stop(text) is not None:
            # The first token with which one was complete, however many have come together.
            lengths = range(num_before, self.num_tokens + 1)
            self.num_tokens = next(n for n in lengths if self._find_stop(self._decode(n)) is not None)
            text = self._decode(self.num_tokens)
            text, self.finish_reason = text[: self._find_stop(text)], "stop"
        elif self.finish_reason is None:
            text = text[: len(text) - self._num_open(text)]
        new, self.text = text[len(self.text) :], max(text, self.text, key=len)
        return new

    def _decode(self, num_tokens: int) -> str:
        # A clean-up would change text that has been sent.
        return self._tokenizer.decode(
            self._tokens[:num_tokens], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def _find_stop(self, text: str) -> int | None:
        return min((place for stop in self._stop if (place := text.find(stop)) >= 0), default=None)

    def _num_open(self, text: str) -> int:
        """Characters at the end that a later token can change: half a character, or the beginning of a stop string."""
        half = len(text) - len(text.rstrip("\ufffd"))
        starts = (
            length
            for stop in self._stop
            for length in range(1, min(len(stop), len(text) + 1))
            if text.endswith(stop[:length])
        )
        return max(half, *starts, 0)
