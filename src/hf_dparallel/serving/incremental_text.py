# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The text, the drafts and the log-probabilities of an answer while its tokens come in."""

from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import decoders
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from .followers import Draft, Progress, TokenLogprobs


# Replaces minus infinity, which JSON does not have.
_LEAST = -9999.0
# The vocabulary of a byte-level tokenizer writes each byte as one of these characters.
_BYTES = {char: byte for byte, char in bytes_to_unicode().items()}


class IncrementalText:
    """Decodes tokens into text that can be sent immediately, because later tokens only add to it.

    The text ends before the first stop string in it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str] = ()):
        self.text = ""
        # Includes the tokens of the stop string.
        self.num_tokens = 0
        # "stop" or "length" at the end of the text.
        self.finish_reason: str | None = None
        self.tokens: list[int] = []
        self._tokenizer = tokenizer
        self._stop = stop

    def add(self, progress: Progress) -> None:
        """Adds tokens, and the text that later tokens cannot change."""
        num_before, self.tokens = len(self.tokens), self.tokens + progress.tokens
        self.num_tokens, self.finish_reason = len(self.tokens), progress.finish_reason
        text = self._first(self.num_tokens)
        if self._find_stop(text) is not None:
            # The tokens up to the one that completed a stop string: a pass may bring more.
            lengths = range(num_before, self.num_tokens + 1)
            self.num_tokens = next(n for n in lengths if self._find_stop(self._first(n)) is not None)
            text = self._first(self.num_tokens)
            text, self.finish_reason = text[: self._find_stop(text)], "stop"
        elif self.finish_reason is None:
            # Half a character may still change, and the beginning of a stop string become one.
            half = len(text) - len(text.rstrip("\ufffd"))
            text = text[: len(text) - max(half, num_begun(text, self._stop))]
        self.text = max(text, self.text, key=len)

    def _first(self, num_tokens: int) -> str:
        return _decode(self._tokenizer, self.tokens[:num_tokens])

    def _find_stop(self, text: str) -> int | None:
        return min((place for stop in self._stop if (place := text.find(stop)) >= 0), default=None)


def num_begun(text: str, strings: Iterable[str]) -> int:
    """Counts the last characters of a text that are the beginning of one of the strings, without its end."""
    lengths = ((string, length) for string in strings for length in range(1, min(len(string), len(text) + 1)))
    return max((length for string, length in lengths if text.endswith(string[:length])), default=0)


def say_draft(tokenizer: PreTrainedTokenizerBase, draft: Draft) -> list[dict[str, Any]]:
    """Returns the text and the commit step of each token, and the confidence of each mask.

    If several tokens make up one character, the last of them has the text.
    """
    said: list[dict[str, Any]] = []
    # The token before decides whether a text begins with a space. Half a character waits for the other half.
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
    """Returns OpenAI's log-probability object of each token. `before` is the token that precedes them, or empty.

    The bytes of all tokens joined are the text of the answer. Special tokens are not part of it and have no bytes.
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
        # The bytes of one character may belong to several tokens.
        piece = tokenizer.convert_ids_to_tokens(token) or ""
        if all(char in _BYTES for char in piece):
            return bytes(_BYTES[char] for char in piece)
    return _following(tokenizer, before, [token]).encode()


def _decode(tokenizer: PreTrainedTokenizerBase, tokens: list[int]) -> str:
    # Cleaning up would change text that is already sent.
    return tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def _following(tokenizer: PreTrainedTokenizerBase, before: list[int], tokens: list[int]) -> str:
    """Returns the text of tokens after other tokens, which decide whether it begins with a space."""
    return _decode(tokenizer, [*before, *tokens])[len(_decode(tokenizer, before)) :]
