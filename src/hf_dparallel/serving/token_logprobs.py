# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The log-probability of each token in the pass that committed it, and how OpenAI's clients read it."""

from typing import Any

import torch
from tokenizers import decoders
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ..generation.canvas import Canvas
from ..generation.parts import Change
from ..generation.prediction import TokenPrediction
from .followers import Follower, Progress, TokenLogprobs


# The least that is told: JSON has no infinity.
_LEAST = -9999.0


class CommitLogprobs(Follower):
    """Collects the log-probabilities of one row. A token that is revised has the ones of its last commit.

    Args:
        num_top (`int`): how many of the likeliest tokens to keep for each place.
    """

    def __init__(self, num_top: int = 0):
        self.num_top = num_top
        self._of_place: dict[int, TokenLogprobs] = {}

    def change(self, canvas: Canvas, row: int, prediction: TokenPrediction, change: Change) -> Change:
        """Changes nothing, and records what is written."""
        written = change.accepted[row]
        places = canvas.place[row, prediction.columns[row, written]]
        logits = prediction.logits[row, written]
        log_probs = torch.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        chosen = log_probs.gather(1, change.tokens[row, written, None]).squeeze(1)
        log_probs[:, canvas.config.mask_token_id] = -torch.inf
        top = log_probs.topk(min(self.num_top, logits.shape[-1] - 1), dim=-1)
        listed = (places.tolist(), chosen.tolist(), top.indices.tolist(), top.values.tolist())
        for place, logprob, top_ids, top_logprobs in zip(*listed, strict=True):
            self._of_place[place] = TokenLogprobs(logprob, list(zip(top_ids, top_logprobs, strict=True)))
        return change

    def tell(self, progress: Progress, start: int, end: int) -> None:
        # What was given was sure.
        progress.logprobs = [self._of_place.get(place, TokenLogprobs(0.0)) for place in range(start, end)]


class LogprobText:
    """Says in text which tokens of an answer were committed, and how likely they and others were.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): decodes the tokens.

    Attributes:
        said (`list[dict]`): what has been returned so far.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.said: list[dict[str, Any]] = []
        self._tokenizer = tokenizer
        # What a token follows says whether it begins with a space.
        self._before: list[int] = []

    def add(self, tokens: list[int], logprobs: list[TokenLogprobs]) -> list[dict[str, Any]]:
        """Takes further tokens, and returns an object for each of them.

        The bytes of all tokens together are the text. A special token, which is no part of it, has none.
        """
        said = []
        for token, measured in zip(tokens, logprobs, strict=True):
            top = [self._say(*pair) for pair in measured.top]
            said.append(self._say(token, measured.logprob) | {"top_logprobs": top})
            self._before = [token]
        self.said += said
        return said

    def _say(self, token: int, logprob: float) -> dict[str, Any]:
        added = self._tokenizer.added_tokens_decoder.get(token)
        content = b"" if added is not None and added.special else self._bytes(token)
        text = added.content if added is not None else content.decode(errors="replace")
        return {"token": text, "bytes": list(content), "logprob": max(logprob, _LEAST)}

    def _bytes(self, token: int) -> bytes:
        if is_byte_level(self._tokenizer):
            piece = self._tokenizer.convert_ids_to_tokens(token) or ""
            if all(char in _BYTES for char in piece):
                return bytes(_BYTES[char] for char in piece)
        before, both = (
            self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            for ids in (self._before, [*self._before, token])
        )
        return both[len(before) :].encode()


# By the letter that stands for it in the vocabulary of a byte-level tokenizer.
_BYTES = {char: byte for byte, char in bytes_to_unicode().items()}


def is_byte_level(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokens are made of bytes, so that a character may be spread over several."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is not None and isinstance(backend.decoder, decoders.ByteLevel)
