# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""From tokens to text and log-probabilities, while they come in."""

from collections.abc import Iterable, Sequence
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
    tokenizer: PreTrainedTokenizerBase, tokens: Iterable[tuple[int, TokenLogprobs]]
) -> list[dict[str, Any]]:
    """Returns OpenAI's log-probability object of each token.

    Special tokens are not part of the text of an answer and have no bytes; parts of a character have `None`.
    """

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        text = tokenizer.backend_tokenizer.decode([token_id], skip_special_tokens=False)
        added = tokenizer.added_tokens_decoder.get(token_id)
        content = [] if added and added.special else None if "\ufffd" in text else list(text.encode())
        # JSON has no minus infinity.
        return {"token": text, "bytes": content, "logprob": max(logprob, -9999.0)}

    return [
        entry(token, measured.logprob) | {"top_logprobs": [entry(*each) for each in measured.top]}
        for token, measured in tokens
    ]
