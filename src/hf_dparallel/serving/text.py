# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The text, the drafts and the log-probabilities of an answer while its tokens come in."""

from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import decoders
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from .row_options import Draft, TokenLogprobs


# Replaces minus infinity, which JSON does not have.
_LEAST = -9999.0
# The vocabulary of a byte-level tokenizer writes each byte as one of these characters.
_BYTES = {char: byte for byte, char in bytes_to_unicode().items()}


class IncrementalText:
    """Decodes tokens into text that can be sent immediately, because later tokens only add to it.

    The text ends before the first stop string in it. Each token is decoded together with the last ones before it, not
    with the whole answer.

    Attributes:
        text (`str`): the text that later tokens do not change.
        tokens (`list[int]`): the tokens, up to the one that completes a stop string.
        is_stopped (`bool`): whether a stop string has ended the text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str] = ()):
        self.text = ""
        self.tokens: list[int] = []
        self.is_stopped = False
        self._tokenizer = tokenizer
        self._stop = stop
        self._longest_stop = max(map(len, stop), default=0)
        # The text so far; the first token that is decoded again with the next one, the first after these, and how many
        # characters of their text are in `_decoded`.
        self._decoded = ""
        self._start = self._new = self._num_told = 0

    def add(self, tokens: Iterable[int]) -> None:
        """Adds tokens, up to the one that completes a stop string."""
        for token in tokens:
            if self.is_stopped:
                return
            self.tokens.append(token)
            window = _decode(self._tokenizer, self.tokens[self._start :])
            # Half a character may still change.
            whole = window.rstrip("\ufffd")
            self._append(whole, moves_on=whole == window)
        if not self.is_stopped:
            # Its end may become a stop string.
            self.text = self._decoded[: len(self._decoded) - num_begun(self._decoded, self._stop)]

    def end(self) -> None:
        """Adds the text that waited for further tokens."""
        if not self.is_stopped:
            self._append(_decode(self._tokenizer, self.tokens[self._start :]), moves_on=True)
        if not self.is_stopped:
            self.text = self._decoded

    def _append(self, window: str, moves_on: bool) -> None:
        """Appends what is new in the text of the tokens from `_start` on, and finds a stop string in it."""
        new = window[self._num_told :]
        first = max(len(self._decoded) - self._longest_stop, 0)
        self._decoded += new
        self._num_told += len(new)
        if moves_on and new:
            # The tokens before the next one decide whether it begins with a space.
            self._start, self._new = self._new, len(self.tokens)
            self._num_told = len(_decode(self._tokenizer, self.tokens[self._start :]))
        places = [place for stop in self._stop if (place := self._decoded.find(stop, first)) >= 0]
        if places:
            self.is_stopped, self.text = True, self._decoded[: min(places)]


def num_begun(text: str, strings: Iterable[str]) -> int:
    """Counts the last characters of a text that are the beginning of one of the strings, without its end."""
    lengths = ((string, length) for string in strings for length in range(1, min(len(string), len(text) + 1)))
    return max((length for string, length in lengths if text.endswith(string[:length])), default=0)


def draft_to_json(tokenizer: PreTrainedTokenizerBase, draft: Draft, before: list[int]) -> list[dict[str, Any]]:
    """Returns the text and the commit step of each token, and the confidence of each mask.

    If several tokens make up one character, the last of them has the text. `before` is the token that precedes the
    draft, or empty.
    """
    entries: list[dict[str, Any]] = []
    # The token before decides whether a text begins with a space. Half a character waits for the other half.
    half = list[int]()
    for place, (token, step) in enumerate(zip(draft.tokens, draft.commit_step, strict=True), draft.start):
        if step < 0:
            confidence = draft.confidence.get(place)
            entries.append({"text": None, "commit_step": None, "confidence": confidence and round(confidence, 3)})
            half = []
            continue
        if place and not before:
            before = [token]
        text = _following(tokenizer, before, [*half, token])
        is_half = text.endswith("\ufffd")
        entries.append({"text": "" if is_half else text, "commit_step": step})
        before, half = (before, [*half, token]) if is_half else ([token], [])
    return entries


def logprobs_to_json(
    tokenizer: PreTrainedTokenizerBase, before: list[int], tokens: Iterable[tuple[int, TokenLogprobs]]
) -> list[dict[str, Any]]:
    """Returns OpenAI's log-probability object of each token. `before` is the token that precedes them, or empty.

    The bytes of all tokens joined are the text of the answer. Special tokens are not part of it and have no bytes.
    """
    entries = []
    for token, measured in tokens:
        top = [_token_to_json(tokenizer, before, *pair) for pair in measured.top]
        entries.append(_token_to_json(tokenizer, before, token, measured.logprob) | {"top_logprobs": top})
        before = [token]
    return entries


def _token_to_json(
    tokenizer: PreTrainedTokenizerBase, before: list[int], token: int, logprob: float
) -> dict[str, Any]:
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
