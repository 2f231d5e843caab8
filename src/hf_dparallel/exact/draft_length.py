# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""How many tokens masks draft in a pass: as many as pay, by the time that passes take here and by what drafts brought.

Answers do not depend on it. Where drafts do not pay, as in large batches on a CPU, none are made.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median_low
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from transformers import PreTrainedModel

from .gated_pass import acting_at


# How many of the drafts are expected to be right before any is known, and how many drafts that counts for.
_PRIOR = 0.8
_PRIOR_WEIGHT = 2.0
# What a draft counts after a pass. So drafts are tried again, some hundred passes after they did not pay.
_KEPT = 0.995
# The most drafts where the pass before had none. From there they grow to twice as many and these, pass by pass.
_FEW = 3
# How much faster drafts must be than none, and again for each doubling of the rows: a batch takes as long as the row
# with fewest drafts that are right.
_MARGIN = 0.07
# How many of the last passes of a kind are remembered, and after how many passes one without masks is timed again.
_REMEMBERED = 5
_TIMED_AGAIN = 100


class DraftLength:
    """Chooses how many tokens a model drafts in a pass, at most `longest`. Threads may share it."""

    def __init__(self, longest: int, model: PreTrainedModel):
        self.longest = longest
        self._model = ref(model)
        # On a CPU the time of the thread, which does not run while other processes do.
        self.clock = time.thread_time if model.device.type == "cpu" else time.perf_counter
        # The seconds of a pass with masks before its first token, and of each token; and how many times as long the
        # last ones took.
        self._seconds: tuple[float, float] | None = None
        self._factors = deque([1.0], maxlen=_REMEMBERED)
        # By number of rows, the seconds of the last passes of one token in each; and the passes since the last one.
        self._plain: dict[int, deque[float]] = {}
        self._num_since = 0
        self._num_last = 0
        # By place, the rows in which there may be a draft, there is one, those before it were accepted, and it was.
        self._counts = [[0.0] * 4 for _ in range(longest)]
        self._lock = Lock()

    def note_drafts(self, num_masks: int, proposed: Sequence[int], accepted: Sequence[int]) -> None:
        """Notes how many drafts were proposed and accepted in rows whose `num_masks` masks could draft them."""
        with self._lock:
            for counts in self._counts:
                counts[:] = [_KEPT * count for count in counts]

            for place, counts in enumerate(self._counts[:num_masks]):
                counts[0] += len(proposed)
                counts[1] += sum(place < count for count in proposed)
                counts[2] += sum(place <= count for count in accepted)
                counts[3] += sum(place < count for count in accepted)

    def note_pass(self, num_rows: int, num_tokens: int, has_masks: bool, seconds: float) -> None:
        """Notes the seconds of a pass that has computed `num_tokens` in all rows together."""
        with self._lock:
            self._num_since += 1
            if has_masks:
                self._factors.append(seconds / self._expected(num_tokens))
            elif num_tokens == num_rows:
                self._plain.setdefault(num_rows, deque(maxlen=_REMEMBERED)).append(seconds)
                self._num_since = 0

    def choose(self, num_rows: int, most: int) -> int:
        """Returns the number of masks, at most `most`, that brings most tokens a second in each of `num_rows` rows."""
        with self._lock:
            num_masks = 0
            plain = self._plain.get(num_rows, ())
            if len(plain) > 1 and self._num_since < _TIMED_AGAIN:
                most = min(most, self.longest, 2 * self._num_last + _FEW)
                margin = 1 + _MARGIN * num_rows.bit_length()
                num_masks = self._fastest(num_rows, most, margin / median_low(plain))
            self._num_last = num_masks
            return num_masks

    def _fastest(self, num_rows: int, most: int, rate: float) -> int:
        """Returns the number of masks with the highest rate of tokens a second, 0 if none is above `rate`."""
        fastest = 0
        factor = median_low(self._factors)
        # The parts of the drafts of a place that are right, and of the rows that have one: about as at the one before.
        right = _PRIOR
        drafted = 1.0
        all_right = 1.0
        num_tokens = 1.0
        num_drafts = 0.0
        for place, (num_possible, proposed, reached, accepted) in enumerate(self._counts[:most]):
            right = (accepted + _PRIOR_WEIGHT * right) / (reached + _PRIOR_WEIGHT)
            all_right *= right
            num_tokens += all_right

            # All rows have as many columns as the one with most drafts.
            drafted = (proposed + _PRIOR_WEIGHT * drafted) / (num_possible + _PRIOR_WEIGHT)
            num_drafts += 1 - (1 - drafted) ** num_rows
            seconds = factor * self._expected(num_rows * (1 + num_drafts + place + 1))
            if num_tokens / seconds > rate:
                rate = num_tokens / seconds
                fastest = place + 1
        return fastest

    def _expected(self, num_tokens: float) -> float:
        """Returns the seconds of a pass with masks, at first from two short ones."""
        if self._seconds is None:
            self._seconds = measure_passes(self._model(), self.clock)
        of_pass, of_token = self._seconds
        return of_pass + num_tokens * of_token


# By model, what has been found out about it where it is, for its next call.
_KNOWN: WeakKeyDictionary[PreTrainedModel, dict[Any, DraftLength]] = WeakKeyDictionary()


def draft_length_of(model: PreTrainedModel, longest: int) -> DraftLength:
    """Returns what chooses the drafts of a model, with what earlier calls have found out."""
    known = _KNOWN.setdefault(model, {})
    return known.setdefault((longest, model.device, model.dtype), DraftLength(longest, model))


@torch.no_grad()
def measure_passes(model: Any, clock: Callable[[], float], num_tokens: int = 16) -> tuple[float, float]:
    """Returns the seconds of a pass with masks before its first token, and of each token, from two short passes."""
    device = model.get_input_embeddings().weight.device

    def seconds(length: int) -> float:
        ids = torch.zeros(1, length, dtype=torch.long, device=device)
        start = clock()
        with acting_at(torch.ones_like(ids, dtype=torch.bool)):
            hidden_states = model.model(input_ids=ids).last_hidden_state
            # Waits for the device.
            model.lm_head(hidden_states)[0, -1, 0].item()
        return clock() - start

    one = seconds(1)
    of_token = max(seconds(1 + num_tokens) - one, 0.0) / num_tokens
    return one - of_token, of_token
