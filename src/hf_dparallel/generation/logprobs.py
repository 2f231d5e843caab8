# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The log-probability of each token in the pass that committed it."""

from dataclasses import dataclass, field

import torch


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
        """Those of the tokens from number `start` to before `end`, all of which stand. What was given was sure."""
        return [self._of_place.get(place, TokenLogprobs(0.0)) for place in range(start, end)]
