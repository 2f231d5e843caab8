# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A commit rule with a memory: import this file, then decode with `kl_threshold`. docs/add_a_rule.md explains it."""

from hf_dparallel_rules.commit_rules import commit_rule, most_certain
from hf_dparallel_rules.settings import Setting


@commit_rule(
    "kl_threshold",
    float,
    "Commit the tokens of more than `kl_confidence` whose predictions have changed by "
    "less than this, in nats of KL divergence, in each of the last "
    "`kl_history_length` passes over their block.",
    noun="a number of nats",
    above_minimum=True,
    source="https://huggingface.co/papers/2511.05664",
    options=[
        Setting(
            "kl_confidence",
            "rule options",
            float,
            "With `kl_threshold`: the probability that a token must exceed.",
            default=0.9,
            noun="a probability",
            maximum=1,
        ),
        Setting(
            "kl_history_length",
            "rule options",
            int,
            "With `kl_threshold`: for how many passes a prediction must be stable.",
            default=2,
            minimum=1,
        ),
    ],
)
class StableAndConfident:
    """KLASS.

    The published code scores the whole canvas in each pass; here, history begins with
    a block.
    """

    def __init__(self, config, canvas):
        self.config, self.canvas = config, canvas
        # Of the last pass: its rows; the open places, their distributions, and the
        # number of passes for which they were stable, each `(rows, tokens)`.
        self._rows: list[int] = []
        self._last: tuple = ()

    def __call__(self, prediction, masked):
        # Counted from the right edge, which no padding moves. 0 stands for no place.
        places = (prediction.columns - self.canvas.width).masked_fill(~masked, 0)
        probs, passes = (
            prediction.logits.double().softmax(dim=-1),
            places.new_zeros(places.shape),
        )
        if self._last:
            last_places, last_probs, last_passes = self._follow_rows()
            # A place was open in the last pass, unless its block has opened since.
            is_same = places[:, :, None] == last_places[:, None, :]
            before = is_same.int().argmax(dim=-1)
            last_probs = last_probs.take_along_dim(before[..., None], dim=1)
            ratio = (probs + 1e-12).log() - (last_probs + 1e-12).log()
            divergence = (probs * ratio).sum(dim=-1)
            is_stable = (divergence < self.config.kl_threshold) & is_same.any(dim=-1)
            passes = (last_passes.gather(1, before) + 1) * is_stable
        self._rows, self._last = list(self.canvas.row_ids), (places, probs, passes)
        is_stable = passes >= self.config.kl_history_length
        ready = masked & is_stable & (prediction.confidence > self.config.kl_confidence)
        is_ready = ready.any(dim=-1, keepdim=True)
        best = masked & most_certain(prediction.confidence, masked)
        return ready | (best & ~is_ready)

    def _follow_rows(self):
        """Returns the last pass of the rows of this one; nothing for new rows."""
        if self._rows == self.canvas.row_ids:
            return self._last
        row_of = {row_id: row for row, row_id in enumerate(self._rows)}
        found = [row_of.get(row_id, -1) for row_id in self.canvas.row_ids]
        rows = self._last[0].new_tensor(found)
        places, *others = (of_rows[rows] for of_rows in self._last)
        return places.masked_fill(rows[:, None] < 0, 0), *others
