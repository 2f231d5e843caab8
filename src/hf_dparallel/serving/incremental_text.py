# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What clients read while the tokens of an answer come in: its text, its drafts, and how likely its tokens were."""

from collections.abc import Sequence
from typing import Any

from tokenizers import decoders
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from .followers import Draft, Progress, TokenLogprobs


# The least log-probability that is told: JSON has no infinity.
_LEAST = -9999.0
# By the letter that stands for it in the vocabulary of a byte-level tokenizer.
_BYTES = {char: byte for byte, char in bytes_to_unicode().items()}


class IncrementalText:
    """Turns tokens into text that can be sent at once: what has been returned never changes.

    It ends before the first of the texts `stop` that occurs in it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str] = ()):
        # What has been returned so far.
        self.text = ""
        # Tokens so far, including the tokens of a stop string.
        self.num_tokens = 0
        # "stop" or "length" once nothing follows.
        self.finish_reason: str | None = None
        self.tokens: list[int] = []
        self._tokenizer = tokenizer
        self._stop = stop

    def add(self, progress: Progress) -> str:
        """Takes further tokens and returns the text that is known to follow."""
        num_before, self.tokens = len(self.tokens), self.tokens + progress.tokens
        self.num_tokens, self.finish_reason = len(self.tokens), progress.finish_reason
        text = self._first(self.num_tokens)
        if self._find_stop(text) is not None:
            # The first token with which one was complete, however many have come together.
            lengths = range(num_before, self.num_tokens + 1)
            self.num_tokens = next(n for n in lengths if self._find_stop(self._first(n)) is not None)
            text = self._first(self.num_tokens)
            text, self.finish_reason = text[: self._find_stop(text)], "stop"
        elif self.finish_reason is None:
            text = text[: len(text) - self._num_open(text)]
        new, self.text = text[len(self.text) :], max(text, self.text, key=len)
        return new

    def _first(self, num_tokens: int) -> str:
        return _decode(self._tokenizer, self.tokens[:num_tokens])

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


def say_draft(tokenizer: PreTrainedTokenizerBase, draft: Draft) -> list[dict[str, Any]]:
    """Returns the text of each token and the pass that committed it; for a mask neither, but its confidence.

    If several tokens make up a character, the last of them has the text.
    """
    said: list[dict[str, Any]] = []
    # What a token follows says whether it begins with a space; half a character is joined to the other half.
    before, half = draft.before, list[int]()
    for position, (token, step) in enumerate(zip(draft.tokens, draft.commit_step, strict=True), draft.start):
        if step < 0:
            confidence = draft.confidence.get(position)
            said.append({"text": None, "commit_step": None, "confidence": confidence and round(confidence, 3)})
            half = []
            continue
        if position and not before:
            before = [token]
        text = _following(tokenizer, before, [*half, token])
        is_half = text.endswith("\ufffd")
        said.append({"text": "" if is_half else text, "commit_step": step})
        before, half = (before, [*half, token]) if is_half else ([token], [])
    return said


def say_logprobs(
    tokenizer: PreTrainedTokenizerBase, before: list[int], tokens: list[int], logprobs: list[TokenLogprobs]
) -> list[dict[str, Any]]:
    """Returns an object for each token of an answer, which follow others: how likely it and others were there.

    The bytes of all tokens together are the text. A special token, which is no part of it, has none.
    """
    said = []
    for token, measured in zip(tokens, logprobs, strict=True):
        top = [_say(tokenizer, before, *pair) for pair in measured.top]
        said.append(_say(tokenizer, before, token, measured.logprob) | {"top_logprobs": top})
        before = [token]
    return said


def _say(tokenizer: PreTrainedTokenizerBase, before: list[int], token: int, logprob: float) -> dict[str, Any]:
    added = tokenizer.added_tokens_decoder.get(token)
    content = b"" if added is not None and added.special else _bytes(tokenizer, before, token)
    text = added.content if added is not None else content.decode(errors="replace")
    return {"token": text, "bytes": list(content), "logprob": max(logprob, _LEAST)}


def _bytes(tokenizer: PreTrainedTokenizerBase, before: list[int], token: int) -> bytes:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and isinstance(backend.decoder, decoders.ByteLevel):
        # A character may be spread over several tokens.
        piece = tokenizer.convert_ids_to_tokens(token) or ""
        if all(char in _BYTES for char in piece):
            return bytes(_BYTES[char] for char in piece)
    return _following(tokenizer, before, [token]).encode()


def _decode(tokenizer: PreTrainedTokenizerBase, tokens: list[int]) -> str:
    # A clean-up would change text that has been sent.
    return tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def _following(tokenizer: PreTrainedTokenizerBase, before: list[int], tokens: list[int]) -> str:
    """The text of tokens behind others, by which a token begins with a space or not."""
    return _decode(tokenizer, [*before, *tokens])[len(_decode(tokenizer, before)) :]
