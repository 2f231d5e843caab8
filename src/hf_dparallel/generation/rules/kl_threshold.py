# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The rule of KLASS: tokens that are likely, and whose prediction the last passes have hardly changed."""

from ..commit_rules import commit_rule, most_certain
from ..settings import add_setting


@commit_rule("kl_threshold", float, noun="a number of nats", above_minimum=True,
    source="https://huggingface.co/papers/2511.05664",
    help="Commit the tokens of more than `kl_confidence` whose predictions have changed by less than this, in nats of "
    "KL divergence, in each of the last `kl_history_length` passes over their block.")  # fmt: skip
class StableAndConfident:
    """KLASS. Unlike in the published code, which scores the whole canvas in each pass, history begins with a block."""

    def __init__(self, config, canvas):
        self.config, self.canvas = config, canvas
        # By row: the places that were open, their distributions, and in how many passes they were stable.
        self._last = {}

    def __call__(self, prediction, masked):
        self._last = {row_id: last for row_id, last in self._last.items() if row_id in self.canvas.row_ids}
        stable = masked.new_zeros(masked.shape)
        for row, row_id in enumerate(self.canvas.row_ids):
            num_open = self.canvas.status[row].num_open
            # Counted from the right edge, which no padding moves.
            places = prediction.columns[row, :num_open] - self.canvas.width
            probs = prediction.logits[row, :num_open].double().softmax(dim=-1)
            stable[row, :num_open] = self._stable_passes(row_id, places, probs) >= self.config.kl_history_length
        ready = masked & stable & (prediction.confidence > self.config.kl_confidence)
        is_ready = ready.any(dim=-1, keepdim=True)
        return ready | (masked & most_certain(prediction.confidence, masked) & ~is_ready)

    def _stable_passes(self, row_id, places, probs):
        """In how many passes up to this one the prediction at each of the places was stable."""
        passes = places.new_zeros(places.shape)
        if row_id in self._last and len(self._last[row_id][0]):
            last_places, last_probs, last_passes = self._last[row_id]
            # What is still open was open in the pass before, unless its block has been opened since.
            is_same = places[:, None] == last_places
            before = is_same.int().argmax(dim=-1)
            divergence = (probs * ((probs + 1e-12).log() - (last_probs[before] + 1e-12).log())).sum(dim=-1)
            passes = (last_passes[before] + 1) * (divergence < self.config.kl_threshold) * is_same.any(dim=-1)
        self._last[row_id] = (places, probs, passes)
        return passes


# fmt: off
add_setting("kl_confidence", "rule options", float, default=0.9, noun="a probability", maximum=1, is_swept=True,
    help="With `kl_threshold`: the probability that a token must exceed.")
add_setting("kl_history_length", "rule options", int, default=2, minimum=1, is_swept=True,
    help="With `kl_threshold`: how many passes in a row a prediction must have been stable.")
# fmt: on
