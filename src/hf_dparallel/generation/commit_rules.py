# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Which masked tokens to commit in a pass. A rule is one function here, with its setting above it.

A rule gets the prediction of a pass, `masked` (which of its tokens may be committed, `(rows, tokens)`) and the value
of its setting, and returns the tokens to commit, `(rows, tokens)`. Every rule commits at least one masked token of
each row that has one, the most certain or the first, so that decoding always ends.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from .settings import add_setting, settings_of


if TYPE_CHECKING:
    import torch

    from .prediction import TokenPrediction

_RULES: dict[str, Any] = {}
# About the least number of float32.
_LEAST = -3e38


def commit_rule(name: str, type: type, help: str, **fields: Any) -> Callable:
    """Registers a commit rule under the setting `name`, which configurations, commands and docs then know.

    The decorated function is called as `function(prediction, masked, value)`. A rule that must remember something
    between passes is a class instead, made as `cls(config, canvas)` for each decoding and called as `rule(prediction,
    masked)`.

    Args:
        name (`str`), type (`type`), help (`str`), fields: the setting, see [`Setting`].
    """

    def register(function: Any) -> Any:
        add_setting(name, "rule", type, help, is_swept=True, **fields)
        _RULES[name] = function
        return function

    return register


def make_rule(config: Any, canvas: Any) -> Callable:
    """The rule that a resolved configuration asks for, as a function of prediction and masked tokens.

    Args:
        config ([`DiffusionGenerationConfig`]), canvas ([`Canvas`]): both above this module, which they read.
    """
    name = config.commit_rule()
    if name is None:
        return most_confident
    rule = _RULES[name]
    rule = rule(config, canvas) if isinstance(rule, type) else partial(_with_value, rule, getattr(config, name))
    if config.max_active_blocks > 1:
        rule = partial(_in_first_block_too, rule, canvas)
    return rule if config.min_commits == 1 else partial(_with_at_least, rule, config.min_commits)


def is_of_one_pass(name: str) -> bool:
    """Whether a rule looks at the predictions of a pass only, so that decoders of other packages can call it."""
    # Soft decoding is more than its rule.
    return name in _RULES and not isinstance(_RULES[name], type) and name != "soft_threshold"


def _with_value(rule: Callable, value: Any, prediction: "TokenPrediction", masked: "torch.Tensor") -> "torch.Tensor":
    return rule(prediction, masked, value)


def _in_first_block_too(
    rule: Callable, canvas: Any, prediction: "TokenPrediction", masked: "torch.Tensor"
) -> "torch.Tensor":
    """Commits the most certain token of the first open block, too, if the rule commits none of that block (d3LLM)."""
    accepted = rule(prediction, masked)
    of_first = masked & (canvas.block.gather(1, prediction.columns) == canvas.open_from[:, None])
    # Of a block with a committed token that one is found, which changes nothing.
    entropy = prediction.entropy.clamp(max=-_LEAST).masked_fill(accepted, -math.inf)
    best = entropy.where(of_first, math.inf).argmin(dim=-1, keepdim=True)
    return accepted | (of_first & accepted.new_zeros(accepted.shape).scatter_(-1, best, True))


def _with_at_least(rule: Callable, num: int, prediction: "TokenPrediction", masked: "torch.Tensor") -> "torch.Tensor":
    count = masked.new_full((len(masked),), num, dtype=prediction.columns.dtype)
    return rule(prediction, masked) | commit_by_count(prediction.confidence, masked, count)


@commit_rule(
    "denoising_steps",
    int,
    help="Commit the most confident tokens on a fixed schedule of this many passes for the whole canvas, spread "
    "evenly over its tokens. Without any rule, one token in each pass.",
    minimum=1,
    source="https://huggingface.co/papers/2502.09992",
)
class Schedule:
    """Commits a fixed number of tokens in each pass. Passes and tokens that do not divide go to the first ones."""

    def __init__(self, config: Any, canvas: Any):
        self.canvas = canvas
        self.order = config.commit_order
        length, block_length, steps = config.max_new_tokens, config.block_length, config.denoising_steps
        if canvas.whole_blocks:
            # One schedule for all blocks: the first and the last have masks beside the answer, or lack some.
            steps, length = round(steps * block_length / length), block_length
        self.counts = scheduled_counts(length, block_length, steps)
        self._table: torch.Tensor | None = None

    def __call__(self, prediction: "TokenPrediction", masked: "torch.Tensor") -> "torch.Tensor":
        if self._table is None:
            longest = max(map(len, self.counts))
            rows = [count + [1] * (longest - len(count)) for count in self.counts]
            self._table = masked.new_tensor(rows, dtype=self.canvas.nfe.dtype)
        block = self.canvas.open_from.clamp(max=len(self.counts) - 1)
        count = self._table[block, self.canvas.step_in_block.clamp(max=self._table.shape[1] - 1)]
        from_left = self.order == "left_to_right"
        return commit_by_count(-prediction.columns.float() if from_left else prediction.confidence, masked, count)


add_setting(
    "commit_order",
    "schedule",
    str,
    "With `denoising_steps`: whether the most confident tokens are committed first, or the first ones "
    '(`"left_to_right"`).',
    default="confidence",
    choices=("confidence", "left_to_right"),
)
add_setting(
    "min_commits",
    "schedule",
    int,
    "With any rule: commit at least this many tokens in each pass, the most confident ones.",
    off=1,
    minimum=1,
    is_swept=True,
)


@commit_rule(
    "confidence_threshold",
    float,
    help="Commit the tokens of at least this probability.",
    noun="a probability",
    above_minimum=True,
    maximum=1,
    source="https://huggingface.co/papers/2505.22618",
)
def commit_by_confidence(prediction, masked, threshold):
    return masked & ((prediction.confidence >= threshold) | most_certain(prediction.confidence, masked))


@commit_rule(
    "entropy_threshold",
    float,
    help="Commit the tokens whose predictive distribution has at most this entropy, in nats.",
    noun="a number of nats",
    source="https://huggingface.co/papers/2509.26488",
)
def commit_by_entropy(prediction, masked, threshold):
    return masked & ((prediction.entropy <= threshold) | most_certain(-prediction.entropy, masked))


@commit_rule(
    "entropy_bound",
    float,
    help="Commit the most certain tokens as long as the sum of their entropies, in nats, less the largest, is at most "
    "this.",
    noun="a number of nats",
    source="https://huggingface.co/papers/2505.24857",
)
def commit_by_entropy_bound(prediction, masked, bound):
    # The joint entropy of a set of tokens differs from the sum of theirs by at most that sum less the largest of them.
    ascending, order = prediction.entropy.masked_fill(~masked, math.inf).sort(dim=-1, stable=True)
    # In ascending order the largest is the last, so what counts is the sum of those before it.
    before = ascending.cumsum(dim=-1).roll(1, dims=-1)
    before[..., 0] = 0
    within = masked.new_zeros(masked.shape).scatter_(-1, order, before <= bound)
    return masked & (within | most_certain(-prediction.entropy, masked))


@commit_rule(
    "entropy_budget",
    float,
    help="Commit the most certain tokens as long as the sum of their entropies, in nats, is below this. It counts the "
    "largest entropy, too, which `entropy_bound` leaves out, and so commits fewer tokens at the same value.",
    noun="a number of nats",
    source="https://huggingface.co/papers/2509.06949",
)
def commit_by_entropy_budget(prediction, masked, budget):
    ascending, order = prediction.entropy.masked_fill(~masked, math.inf).sort(dim=-1, stable=True)
    within = masked.new_zeros(masked.shape).scatter_(-1, order, ascending.cumsum(dim=-1) < budget)
    return masked & (within | most_certain(-prediction.entropy, masked))


@commit_rule(
    "confidence_factor",
    float,
    help="Commit the `n` most confident tokens, the most for which `n + 1` times one minus the probability of the "
    "last is below this (Theorem 1).",
    above_minimum=True,
    source="https://huggingface.co/papers/2505.22618",
)
def commit_by_confidence_factor(prediction, masked, factor):
    # The more tokens at once, the more confident must the last one be.
    confidence = prediction.confidence.masked_fill(~masked, -math.inf)
    descending, order = confidence.sort(dim=-1, descending=True, stable=True)
    count = order.new_ones(order.shape).cumsum(dim=-1)
    # Both sides of the product grow with the count: where it holds, it holds for every smaller one.
    within = masked.new_zeros(masked.shape).scatter_(-1, order, (count + 1) * (1 - descending) < factor)
    return masked & (within | most_certain(confidence, masked))


@commit_rule(
    "kl_threshold",
    float,
    help="Commit the tokens of more than `kl_confidence` whose predictions have changed by less than this, in nats of "
    "KL divergence, in each of the last `kl_history_length` passes over their block.",
    noun="a number of nats",
    above_minimum=True,
    source="https://huggingface.co/papers/2511.05664",
)
class StableAndConfident:
    """KLASS. Unlike in the published code, which scores the whole canvas in each pass, history begins with a block."""

    def __init__(self, config: Any, canvas: Any):
        self.canvas = canvas
        self.threshold = config.kl_threshold
        self.confidence = config.kl_confidence
        self.history_length = config.kl_history_length
        # By row: the places that were open, their distributions, and in how many passes they were stable.
        self._last: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def __call__(self, prediction: "TokenPrediction", masked: "torch.Tensor") -> "torch.Tensor":
        self._last = {row_id: last for row_id, last in self._last.items() if row_id in self.canvas.row_ids}
        stable = masked.new_zeros(masked.shape)
        for row, row_id in enumerate(self.canvas.row_ids):
            num_open = self.canvas.status[row].num_open
            # Counted from the right edge, which no padding moves.
            places = prediction.columns[row, :num_open] - self.canvas.width
            probs = prediction.logits[row, :num_open].double().softmax(dim=-1)
            stable[row, :num_open] = self._stable_passes(row_id, places, probs) >= self.history_length
        ready = masked & stable & (prediction.confidence > self.confidence)
        is_ready = ready.any(dim=-1, keepdim=True)
        return ready | (masked & most_certain(prediction.confidence, masked) & ~is_ready)

    def _stable_passes(self, row_id: int, places: "torch.Tensor", probs: "torch.Tensor") -> "torch.Tensor":
        """In how many passes up to this one the prediction at each of the places was stable."""
        passes = places.new_zeros(places.shape)
        if row_id in self._last and len(self._last[row_id][0]):
            last_places, last_probs, last_passes = self._last[row_id]
            # What is still open was open in the pass before, unless its block has been opened since.
            is_same = places[:, None] == last_places
            before = is_same.int().argmax(dim=-1)
            divergence = (probs * ((probs + 1e-12).log() - (last_probs[before] + 1e-12).log())).sum(dim=-1)
            passes = (last_passes[before] + 1) * (divergence < self.threshold) * is_same.any(dim=-1)
        self._last[row_id] = (places, probs, passes)
        return passes


@commit_rule(
    "soft_threshold",
    float,
    help="Soft decoding: commit the masked tokens before the first one below this probability. Until the block is "
    "left, each pass decides all committed tokens anew, and sees them mixed with the mask token. For models that "
    "were trained for it.",
    noun="a probability",
    maximum=1,
    source="https://huggingface.co/papers/2604.08302",
)
def commit_prefix(prediction, masked, threshold):
    stops = masked & ~(prediction.confidence >= threshold)
    # The masks of a row come first, from left to right.
    return masked & ((stops.cumsum(dim=-1) == 0) | most_certain(-prediction.columns.float(), masked))


add_setting(
    "kl_confidence",
    "schedule",
    float,
    "With `kl_threshold`: the probability that a token must exceed.",
    default=0.9,
    noun="a probability",
    maximum=1,
    is_swept=True,
)
add_setting(
    "kl_history_length",
    "schedule",
    int,
    "With `kl_threshold`: how many passes in a row a prediction must have been stable.",
    default=2,
    minimum=1,
    is_swept=True,
)


def most_certain(certainty: "torch.Tensor", masked: "torch.Tensor") -> "torch.Tensor":
    """The masked token of the greatest certainty in each row, `(rows, tokens)`."""
    # An infinite entropy is still better than a token that may not be committed.
    best = certainty.clamp(min=_LEAST).masked_fill(~masked, -math.inf).argmax(dim=-1, keepdim=True)
    return masked.new_zeros(masked.shape).scatter_(-1, best, True)


def most_confident(prediction: "TokenPrediction", masked: "torch.Tensor") -> "torch.Tensor":
    """Without a rule: one token in each pass."""
    return masked & most_certain(prediction.confidence, masked)


def commit_by_count(confidence: "torch.Tensor", masked: "torch.Tensor", count: "torch.Tensor") -> "torch.Tensor":
    """Commits the `count` most confident tokens of each row, `count` of shape `(rows,)`."""
    order = confidence.masked_fill(~masked, -math.inf).argsort(dim=-1, descending=True, stable=True)
    return masked & (order.argsort(dim=-1) < count[:, None])


def scheduled_counts(max_new_tokens: int, block_length: int, denoising_steps: int) -> list[list[int]]:
    """How many tokens to commit at each step of each block.

    Every block gets at least one of `denoising_steps`, the others in proportion to its further tokens; the tokens of a
    block are spread evenly over its steps (https://huggingface.co/papers/2502.09992).
    """
    lengths = [min(block_length, max_new_tokens - start) for start in range(0, max_new_tokens, block_length)]
    further_steps, further_tokens = denoising_steps - len(lengths), max_new_tokens - len(lengths)
    counts, given, tokens = [], 0, 0
    for length in lengths:
        tokens += length - 1
        until_here = -(-further_steps * tokens // further_tokens) if further_tokens else 0
        steps, given = 1 + until_here - given, until_here
        counts.append([length // steps + (step < length % steps) for step in range(steps)])
    return counts


def commit_rules() -> tuple[str, ...]:
    """Names of the settings that are commit rules."""
    return settings_of("rule")


__all__ = ["commit_rule", "commit_rules", "is_of_one_pass", "make_rule", "most_certain"]
