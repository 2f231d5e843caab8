# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""How many tokens masks draft in a pass: as many as pay, by what a pass costs here and by what drafts have brought.

Answers do not depend on it. Where drafts do not pay, as in large batches on a CPU, none are made.
"""

import time
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from .gated_pass import acting_at


# What is expected of the first draft before any is known, and of each next one as a part of that; and how many
# observations it counts for.
_PRIOR = 0.9
_PRIOR_WEIGHT = 0.5
# What an observation counts after a pass. So drafts are tried again, some hundred passes after they did not pay.
_KEPT = 0.99


class DraftLength:
    """Chooses how many tokens are drafted in a pass, at most `longest`.

    `free_tokens` is the price of a pass of no token, in tokens: a pass of so many costs twice as much.
    """

    def __init__(self, longest: int, free_tokens: float):
        self.longest = longest
        self.free_tokens = free_tokens
        # By place of a draft: how often there was a mask for it, and it was proposed, and accepted.
        self._masks = [0.0] * longest
        self._proposed = [0.0] * longest
        self._accepted = [0.0] * longest

    def note(self, num_masks: int, proposed: Sequence[int], accepted: Sequence[int]) -> None:
        """Notes how many tokens were proposed and accepted in rows that had `num_masks` masks in the pass before."""
        for place in range(self.longest):
            has_mask = place < num_masks
            self._masks[place] = _KEPT * self._masks[place] + has_mask * len(proposed)
            self._proposed[place] = _KEPT * self._proposed[place] + sum(count > place for count in proposed)
            self._accepted[place] = _KEPT * self._accepted[place] + sum(count > place for count in accepted)

    def choose(self, num_rows: int) -> int:
        """Returns the number of masks that brings most tokens for what it costs, in each of so many rows."""
        best = 0
        num_tokens = 1.0
        num_proposed = 0.0
        most = num_tokens / self._cost(num_rows)
        for place in range(self.longest):
            prior = _PRIOR_WEIGHT * _PRIOR ** (place + 1)
            observed = self._masks[place] + _PRIOR_WEIGHT
            num_tokens += (self._accepted[place] + prior) / observed
            num_proposed += (self._proposed[place] + prior) / observed
            # A pass verifies what the last one has proposed.
            num_columns = 1 + num_proposed + place + 1
            rate = num_tokens / self._cost(num_rows * num_columns)
            if rate > most:
                most = rate
                best = place + 1
        return best

    def _cost(self, num_tokens: float) -> float:
        return 1 + num_tokens / self.free_tokens


# By model, what has been found out about it where it is, for its next call.
_KNOWN: WeakKeyDictionary[PreTrainedModel, dict[Any, DraftLength]] = WeakKeyDictionary()


def draft_length_of(model: PreTrainedModel, longest: int) -> DraftLength:
    """Returns what chooses the drafts of a model, with what earlier calls have found out."""
    known = _KNOWN.setdefault(model, {})
    place = (longest, model.device, model.dtype)
    if place not in known:
        known[place] = DraftLength(longest, measure_free_tokens(model))
    return known[place]


@torch.no_grad()
def measure_free_tokens(model: PreTrainedModel, num_tokens: int = 64) -> float:
    """Returns the price of a pass of no token, in tokens, from three passes.

    The long one has as many tokens as a pass over several rows: each costs more there than among a few.
    """
    device = model.get_input_embeddings().weight.device

    def seconds(length: int) -> float:
        ids = torch.zeros(1, length, dtype=torch.long, device=device)
        start = time.perf_counter()
        with acting_at(torch.ones_like(ids, dtype=torch.bool)):
            hidden_states = model.model(input_ids=ids).last_hidden_state
            # Waits for the device.
            model.lm_head(hidden_states)[0, -1, 0].item()
        return time.perf_counter() - start

    # The first pass also warms up.
    before = seconds(1)
    longer = seconds(1 + num_tokens)
    one = min(before, seconds(1))
    of_token = max(longer - one, 1e-9) / num_tokens
    return max(one / of_token - 1, 1e-9)
