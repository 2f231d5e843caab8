# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The log-probability of each token in the pass that committed it."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from .parts import Change, RowPart
from .prediction import TokenPrediction


@dataclass
class TokenLogprobs:
    """The log-probability of a token, and those of the likeliest tokens at its place.

    Args:
        logprob (`float`): in nats, at temperature 1 and over the whole vocabulary, as the commit rules measure it.
        top (`list[tuple[int, float]]`): token ids and their log-probabilities, the likeliest first. The mask token,
            which is never committed, is left out.
    """

    logprob: float
    top: list[tuple[int, float]] = field(default_factory=list)


class CommitLogprobs:
    """Collects the log-probabilities of one row. A token that is revised has those of its last commit.

    Args:
        num_top (`int`): how many of the likeliest tokens to keep for each place.
    """

    def __init__(self, num_top: int = 0):
        self.num_top = num_top
        self._of_place: dict[int, TokenLogprobs] = {}

    def record(
        self, places: torch.LongTensor, tokens: torch.LongTensor, logits: torch.Tensor, mask_token_id: int
    ) -> None:
        """Takes what a pass commits: numbers of tokens in the answer, token ids (`(tokens,)` both), and their scores.

        Args:
            places, tokens (`torch.LongTensor` of shape `(tokens,)`): where in the answer, and which tokens.
            logits (`torch.Tensor` of shape `(tokens, vocab_size)`): the scores that they were predicted from.
            mask_token_id (`int`): the token that is left out of the likeliest ones.
        """
        log_probs = torch.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        chosen = log_probs.gather(1, tokens[:, None]).squeeze(1)
        log_probs[:, mask_token_id] = -torch.inf
        top = log_probs.topk(min(self.num_top, logits.shape[-1] - 1), dim=-1)
        listed = (places.tolist(), chosen.tolist(), top.indices.tolist(), top.values.tolist())
        for place, logprob, top_ids, top_logprobs in zip(*listed, strict=True):
            self._of_place[place] = TokenLogprobs(logprob, list(zip(top_ids, top_logprobs, strict=True)))

    def read(self, start: int, end: int) -> list[TokenLogprobs]:
        """The log-probabilities of the tokens from place `start` to before `end`. What was given was sure."""
        return [self._of_place.get(place, TokenLogprobs(0.0)) for place in range(start, end)]


class LogprobRecording(RowPart):
    """Records the log-probabilities of rows that want them.

    Args:
        logprobs_for (`Callable`): gives what collects them for a row, or `None`.
    """

    def __init__(self, logprobs_for: Callable[[int], CommitLogprobs | None]):
        self.logprobs_for = logprobs_for
        self._logprobs: dict[int, CommitLogprobs] = {}

    def enter(self, row_ids: list[int]) -> None:
        wanted = {row_id: self.logprobs_for(row_id) for row_id in row_ids}
        self._logprobs |= {row_id: logprobs for row_id, logprobs in wanted.items() if logprobs is not None}

    def leave(self, row_id: int) -> dict:
        self._logprobs.pop(row_id, None)
        return {}

    def change(self, prediction: TokenPrediction, change: Change) -> Change:
        """Changes nothing, and records what is written."""
        for row, row_id in enumerate(self.canvas.row_ids):
            if row_id in self._logprobs:
                written = change.accepted[row]
                places = self.canvas.place[row, prediction.columns[row, written]]
                logits = prediction.logits[row, written]
                mask_token_id = self.canvas.config.mask_token_id
                self._logprobs[row_id].record(places, change.tokens[row, written], logits, mask_token_id)
        return change
