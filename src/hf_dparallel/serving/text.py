# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""From tokens to text and log-probabilities, while they come in."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerBase

from .engine import TokenLogprobs


class IncrementalText:
    """Decodes tokens into text that can be sent immediately, because later tokens only add to it.

    The text ends before the first stop string in it.

    Attributes:
        text (`str`): the text that later tokens do not change.
        tokens (`list[int]`): the tokens, up to the one that completes a stop string.
        is_stopped (`bool`): whether a stop string has ended the text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str] = ()):
        self.text = ""
        self.tokens: list[int] = []
        self.is_stopped = False
        self.tokenizer = tokenizer
        self.stop = stop
        self._stream = DecodeStream(skip_special_tokens=True)
        # Its end may become a stop string.
        self._decoded = ""

    def add(self, tokens: Iterable[int], is_last: bool = False) -> None:
        """Adds tokens, up to the one that completes a stop string; the last ones with half a character at the end."""
        for token in tokens:
            self.tokens.append(token)
            self._decoded += self._stream.step(self.tokenizer.backend_tokenizer, token) or ""
            places = [place for stop in self.stop if (place := self._decoded.find(stop)) >= 0]
            if places:
                self.is_stopped, self.text = True, self._decoded[: min(places)]
                return
        if is_last:
            self.text = self.tokenizer.backend_tokenizer.decode(self.tokens, skip_special_tokens=True)
        else:
            self.text = self._decoded[: len(self._decoded) - num_begun(self._decoded, self.stop)]


def num_begun(text: str, strings: Iterable[str]) -> int:
    """Counts the last characters of a text that are the beginning of one of the strings, without its end."""
    lengths = ((string, length) for string in strings for length in range(1, min(len(string), len(text) + 1)))
    return max((length for string, length in lengths if text.endswith(string[:length])), default=0)


def logprobs_to_json(
    tokenizer: PreTrainedTokenizerBase, before: list[int], tokens: Iterable[tuple[int, TokenLogprobs]]
) -> list[dict[str, Any]]:
    """Returns OpenAI's log-probability object of each token. `before` is the token that precedes them, or empty.

    Special tokens are not part of the text of an answer and have no bytes; parts of a character have `None`.
    """

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        text, added = _following(tokenizer, before, token_id), tokenizer.added_tokens_decoder.get(token_id)
        content = None if "\ufffd" in text else list(text.encode())
        # JSON has no minus infinity.
        return {"token": text or (added.content if added else ""), "bytes": content, "logprob": max(logprob, -9999.0)}

    entries = []
    for token, measured in tokens:
        likeliest = [entry(*each) for each in measured.top]
        entries.append(entry(token, measured.logprob) | {"top_logprobs": likeliest})
        before = [token]
    return entries


def _following(tokenizer: PreTrainedTokenizerBase, before: list[int], token: int) -> str:
    """Returns the text of a token after another one, which decides whether it begins with a space."""
    decode = partial(tokenizer.backend_tokenizer.decode, skip_special_tokens=True)
    text = decode(before)
    return decode([token]) if text.endswith("\ufffd") else decode([*before, token])[len(text) :]
