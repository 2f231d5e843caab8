# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""From tokens to text and log-probabilities, while they come in."""

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any

from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerBase

from ..data.texts import num_begun, text_after
from ..data.thoughts import ThoughtMarkers, hidden_tokens
from .engine import TokenLogprobs


class IncrementalText:
    """Decodes tokens into text that can be sent immediately, because later tokens only add to it.

    The text ends before the first stop string in it.

    Attributes:
        text (`str`): the text that later tokens do not change.
        tokens (`list[int]`): the tokens, up to the one that completes a stop string.
        is_stopped (`bool`): whether a stop string has ended the text.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stop: Sequence[str] = (),
        markers: ThoughtMarkers | None = None,
        shown: Collection[str] = (),
    ):
        """Leaves out special tokens, but for those `shown`, and the `markers` of thoughts, by default the template's.

        Args:
            tokenizer: the tokenizer.
            stop: the stop strings.
            markers: the markers of thoughts.
            shown: special tokens that are part of the text, such as tags of calls.
        """
        self.text = ""
        self.tokens: list[int] = []
        self.is_stopped = False
        self.tokenizer = tokenizer
        self.stop = stop
        hidden = hidden_tokens(tokenizer, markers or ThoughtMarkers.of(tokenizer))
        self._hidden = {token for token in hidden if tokenizer.convert_ids_to_tokens(token) not in shown}
        self._stream = DecodeStream(skip_special_tokens=False)
        # Its end may become a stop string.
        self._decoded = ""

    def add(self, tokens: Iterable[int], is_last: bool = False) -> None:
        """Adds tokens, up to the one that completes a stop string; the last ones with half a character at the end."""
        for token in tokens:
            self.tokens.append(token)
            if token in self._hidden:
                continue

            self._decoded += self._stream.step(self.tokenizer.backend_tokenizer, token) or ""
            places = [self._decoded.find(stop) for stop in self.stop]
            found = [place for place in places if place >= 0]
            if found:
                self.is_stopped = True
                self.text = self._decoded[: min(found)]
                return

        if is_last:
            shown = [token for token in self.tokens if token not in self._hidden]
            self.text = self.tokenizer.backend_tokenizer.decode(shown, skip_special_tokens=False)
        else:
            self.text = self._decoded[: len(self._decoded) - num_begun(self._decoded, self.stop)]


def logprobs_to_json(
    tokenizer: PreTrainedTokenizerBase, before: list[int], tokens: Iterable[tuple[int, TokenLogprobs]]
) -> list[dict[str, Any]]:
    """Returns OpenAI's log-probability object of each token. `before` is the token that precedes them, or empty.

    Special tokens are not part of the text of an answer and have no bytes; parts of a character have `None`.
    """

    decode = partial(tokenizer.backend_tokenizer.decode, skip_special_tokens=True)
    added = tokenizer.added_tokens_decoder

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        text = text_after(decode, before, token_id)
        content = None if "\ufffd" in text else list(text.encode())
        if not text and token_id in added:
            text = added[token_id].content
        # JSON has no minus infinity.
        return {"token": text, "bytes": content, "logprob": max(logprob, -9999.0)}

    entries = []
    for token, measured in tokens:
        likeliest = [entry(*each) for each in measured.top]
        entries.append(entry(token, measured.logprob) | {"top_logprobs": likeliest})
        before = [token]
    return entries
