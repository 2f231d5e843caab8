# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The slow, obvious sampler that the fast one is held against: one row, whole canvas, float64, one token at a time.

A pass predicts, accepts and revises, by a function each: whole canvas or suffix window, mixtures, a copy of the block
for verification; the commit rules; verified commits, editing, soft decoding; and ends of answers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch

from hf_dparallel_rules.rules.denoising_steps import scheduled_counts


class Guess(NamedTuple):
    token: int
    probability: float
    entropy: float


@dataclass
class Row:
    """A row on its way, with its settings. Places count from the first token of the prompt."""

    tokens: list[int]
    mask: int
    settings: dict
    first_new: int
    end: int
    blocks: list[range]
    nfe: int = 0
    revisions: int = 0
    first: int = 0
    last: int = 0
    # Passes since the first open block was entered, and since the open blocks had a mask.
    step: int = 0
    post_steps: int = 0
    # By pass, the entropies of the open masks.
    entropies: list[dict[int, float]] = field(default_factory=list)
    # What soft decoding and KLASS keep of the pass before.
    certainty: dict[int, float] = field(default_factory=dict)
    seen: dict[int, tuple[torch.Tensor, int]] = field(default_factory=dict)

    def __post_init__(self):
        self.given = [token != self.mask for token in self.tokens]
        self.steps = [-1] * len(self.tokens)

    @property
    def open(self) -> range:
        return range(self.blocks[self.first].start, self.blocks[self.last].stop)

    def masked(self, places) -> list[int]:
        return [i for i in places if self.tokens[i] == self.mask]

    @property
    def to_decide(self) -> list[int]:
        """Returns the masks that a pass may decide: the first alone where the token before the block predicts it."""
        masks = self.masked(self.open)
        return [self.open.start] if self.settings["first_alone"] and self.open.start in masks else masks

    @property
    def revises(self) -> bool:
        return any(name in self.settings for name in ("revocation_threshold", "editing_threshold", "soft_threshold"))

    def block_of(self, places: torch.Tensor) -> torch.Tensor:
        """Returns the block number of each place, below 0 in the prompt if blocks are counted from its end."""
        origin = 0 if self.settings["whole_blocks"] else self.first_new
        return (places - origin) // self.settings["block_length"]

    def decided(self) -> list[int]:
        """Returns the places of tokens that may be revised."""
        if self.settings["first_alone"] and self.tokens[self.open.start] == self.mask:
            return []
        places = self.open[1:] if self.settings["first_alone"] else self.open
        return [i for i in places if self.tokens[i] != self.mask and not self.given[i]]


def make_row(model, prompt, max_new_tokens, block_length, **settings) -> Row:
    mask, length = model.config.mask_token_id, len(prompt) + max_new_tokens
    origin = settings.get("block_origin") or getattr(model.config, "block_origin", "sequence")
    settings["whole_blocks"] = model.attention != "full" and origin == "sequence"
    if settings["whole_blocks"]:
        # Blocks are counted from the first token, and the last one is whole.
        first_new, width = len(prompt), -(-length // block_length) * block_length
        starts = range(0, width, block_length)
    else:
        # Blocks follow the prompt; where it is filled in, they end with it and the first may be shorter.
        first_new, width = len(prompt) if max_new_tokens else 0, length
        starts = range(first_new if max_new_tokens else -(-length % block_length), width, block_length)
    blocks = [range(max(start, 0), min(start + block_length, width)) for start in starts]
    row = Row(prompt + [mask] * (width - len(prompt)), mask, settings, first_new, length, blocks)
    row.settings |= {"max_new_tokens": max_new_tokens, "block_length": block_length}
    row.settings["attention"] = model.attention
    row.settings["first_alone"] = model.attention == "causal_past" or model.attention != "full" and model.shift_logits
    return row


@torch.no_grad()
def naive_generate(
    model,
    prompt: list[int],
    max_new_tokens: int,
    block_length: int,
    eos_token_id: int | list[int] = (),
    max_active_blocks: int = 1,
    block_add_threshold: float = 0.5,
    predict: Callable | None = None,
    ends: Callable[[list[int], int], bool] = lambda sequence, answer_start: False,
    stop_at_eos: bool = True,
    **settings,
) -> Row:
    """Returns the row with its new tokens (when infilling, all), up to the first EOS token, if one is given.

    An answer also ends with the first token at which it `ends`.
    """
    row = make_row(model, prompt, max_new_tokens, block_length, **settings)
    predict = predict or partial(predict_whole, model)
    revise = make_revise(settings)
    end_tokens = {eos_token_id} if isinstance(eos_token_id, int) else {*eos_token_id}
    if not stop_at_eos or not max_new_tokens:
        end_tokens = set()

    # Decided tokens that a revision may still change: they keep the row in their block.
    pending: set[int] = set()
    while True:
        open_blocks(row, pending, max_active_blocks, block_add_threshold)
        end = find_end(row, pending, end_tokens, ends)
        if end is not None:
            row.tokens = row.tokens[row.first_new : end]
            row.steps = row.steps[row.first_new : end]
            return row

        # Predict the masks of the open blocks.
        probs = predict(row)
        guesses = {i: make_guess(probs[i], row.mask) for i in row.to_decide}
        row.entropies.append({i - row.first_new: guess.entropy for i, guess in guesses.items()})

        # Choose the predictions to commit: at least one, also in the first of several blocks.
        chosen = accept_by_rule(row, guesses, probs)
        of_first = set(row.blocks[row.first]) & guesses.keys()
        if of_first and max_active_blocks > 1 and not chosen & of_first:
            chosen |= {min(of_first, key=lambda i: guesses[i].entropy)}

        # Change decided tokens, if they may change.
        changes, pending = revise(row, probs, guesses, chosen)
        if row.settings["first_alone"]:
            # The first token of a block is not revised once the block is the first open one.
            pending -= {block.start for block in row.blocks}

        write(row, {i: guesses[i].token for i in chosen} | changes)


def open_blocks(row: Row, pending: set[int], max_active_blocks: int, block_add_threshold: float) -> None:
    """Opens the first block that is not decided, and in each pass at most one more after the last open one."""
    undecided = [n for n, block in enumerate(row.blocks) if row.masked(block) or pending & set(block)]
    first = undecided[0] if undecided else len(row.blocks)
    if first != row.first:
        row.step = 0
    row.first = first
    row.last = max(row.last, first)

    if row.nfe and row.last + 1 < min(len(row.blocks), first + max_active_blocks):
        block = row.blocks[row.last]
        if len(row.masked(block)) <= (1 - block_add_threshold) * len(block):
            row.last += 1


def find_end(row: Row, pending: set[int], end_tokens: set[int], ends: Callable[[list[int], int], bool]) -> int | None:
    """Returns the place after the last token of the answer, or `None` if the row is not finished."""
    answer = range(row.first_new, row.end)
    num_decided = next((i for i in answer if i in pending or row.masked([i])), row.end)
    after_end_token = next((i + 1 for i in range(row.first_new, num_decided) if row.tokens[i] in end_tokens), None)
    end = row.end if num_decided == row.end else None
    if after_end_token is not None:
        end = after_end_token

    # What a row may still revise is looked at when it has left the block.
    final = num_decided if end is None else end
    if end is None and row.revises:
        final = min(num_decided, row.open.start)
    for length in range(row.first_new + 1, final + 1) if row.nfe else ():
        if ends(row.tokens[:length], row.first_new):
            return length
    return end


def write(row: Row, changes: dict[int, int]) -> None:
    """Writes the changes of a pass, and counts it."""
    row.post_steps = 0 if row.masked(row.open) else row.post_steps + 1
    row.revisions += sum(row.tokens[i] != row.mask for i in changes)
    for i, token in changes.items():
        row.tokens[i] = token
        row.steps[i] = row.nfe if token != row.mask else -1
    row.nfe += 1
    row.step += 1


def make_guess(probs: torch.Tensor, mask: int) -> Guess:
    entropy = -(probs * (probs + 1e-300).log()).sum().item()
    others = probs.clone()
    others[mask] = -1
    token = int(others.argmax())
    return Guess(token, probs[token].item(), math.inf if probs[mask] > probs[token] else entropy)


def predict_whole(model, row: Row) -> torch.Tensor:
    """Returns the distribution at every place; with verified commits, decided tokens do not see themselves."""
    lead, suffix_length = int(model.shift_logits), row.settings.get("suffix_length")
    if model.attention != "full":
        suffix_length = 0
    end = len(row.tokens) if suffix_length is None else min(row.open.stop + suffix_length, len(row.tokens))
    ids = row.tokens[:end]
    if row.settings.get("revocation_threshold"):
        return predict_with_copy(model, row, ids, lead)
    embed = model.get_input_embeddings()
    inputs, of_mask = embed(torch.tensor([ids])), embed.weight[row.mask]
    for i in row.decided() if row.settings.get("soft_threshold") is not None else []:
        # In float32, as rows keep it: what is fed back makes every rounding larger from pass to pass.
        p, of_token = torch.tensor(row.certainty[i]), embed.weight[row.tokens[i]]
        mixed = p * of_token + (1 - p) * of_mask
        inputs[0, i] = mixed / (mixed.norm() + 1e-6) * (p * of_token.norm() + (1 - p) * of_mask.norm())
    visible = sees(row, torch.arange(end)[:, None], torch.arange(end))
    logits = model(inputs_embeds=inputs, attention_mask=as_mask(visible, model)).logits[0]
    return penalised(row, of_first_token(row, logits)).softmax(-1)


def sees(row: Row, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Returns whether the place of a query sees the place of a key, by the attention of the model."""
    start, block_of = row.open.start, row.block_of
    return {
        "full": (key == key) & (query == query),
        "block_causal": block_of(key) <= block_of(query),
        "causal_past": (key <= query) | ((key >= start) & (query >= start)),
    }[row.settings["attention"]]


def as_mask(visible: torch.Tensor, model) -> torch.Tensor:
    return torch.zeros(visible.shape, dtype=model.dtype).masked_fill(~visible, float("-inf"))[None, None]


def of_first_token(row: Row, logits: torch.Tensor) -> torch.Tensor:
    """Takes the logits of the token before a block for its first one, after a causal past. (If shifted, all are.)"""
    if row.settings["attention"] == "causal_past" and row.open.start:
        logits[row.open.start] = logits[row.open.start - 1]
    return logits


def penalised(row: Row, logits: torch.Tensor) -> torch.Tensor:
    """Lowers, with a repetition penalty, the scores of tokens that the row has at other places."""
    penalty = row.settings.get("repetition_penalty")
    if penalty is None:
        return logits
    # As processors get it.
    logits = logits.float()
    for i in range(len(logits)):
        for token in {*row.tokens[:i], *row.tokens[i + 1 :]} - {row.mask}:
            logits[i, token] *= penalty if logits[i, token] < 0 else 1 / penalty
    return logits


def predict_with_copy(model, row: Row, ids: list[int], lead: int) -> torch.Tensor:
    """Predicts decided tokens in an undecided copy of the open blocks after the canvas, by a mask written out."""
    # With the token before the blocks, where predictions are one place early.
    places = list(range(max(row.open.start - lead, 0), row.open.stop))
    is_new = {*row.to_decide, *row.decided()}
    inputs = ids + [row.mask if i in is_new else ids[i] for i in places]
    query, key = torch.meshgrid(torch.arange(len(inputs)), torch.arange(len(inputs)), indexing="ij")
    place = torch.tensor([-9] * len(ids) + places)
    # A first token is predicted at its own place.
    blind = (place[query] + lead == key) | ((place[query] == 0) & (key == 0))
    in_copy = torch.tensor([i in is_new for i in place.tolist()])
    visible = torch.where(key < len(ids), (query < len(ids)) | ~blind, (query >= len(ids)) & in_copy[key])
    positions = torch.tensor([*range(len(ids)), *places])
    mask = as_mask(visible, model)
    logits = model(torch.tensor([inputs]), attention_mask=mask, position_ids=positions[None]).logits[0]
    for i in row.decided():
        logits[i] = logits[len(ids) + i - places[0]]
    return penalised(row, logits[: len(ids)]).softmax(-1)


def accept_by_rule(row: Row, guesses: dict[int, Guess], probs: torch.Tensor) -> set[int]:
    """Returns the masks of the open blocks that the commit rule decides."""
    ((rule, value),) = [one for one in row.settings.items() if one[0] in _RULES] or [("one", None)]
    by_confidence = sorted(guesses, key=lambda i: -guesses[i].probability)
    least = by_confidence[: row.settings.get("min_commits", 0)]
    return _RULES[rule](row, guesses, value, probs) | {*least} if guesses else set()


def _threshold(row, guesses, value, probs):
    chosen = {i for i, guess in guesses.items() if guess.entropy <= value}
    return chosen | {min(guesses, key=lambda i: guesses[i].entropy)}


def _confidence(row, guesses, value, probs):
    chosen = {i for i, guess in guesses.items() if guess.probability >= value}
    return chosen | {max(guesses, key=lambda i: guesses[i].probability)}


def _bound(row, guesses, value, probs):
    order = sorted(guesses, key=lambda i: guesses[i].entropy)
    return {i for n, i in enumerate(order) if n == 0 or sum(guesses[j].entropy for j in order[:n]) <= value}


def _budget(row, guesses, value, probs):
    order = sorted(guesses, key=lambda i: guesses[i].entropy)
    return {i for n, i in enumerate(order) if n == 0 or sum(guesses[j].entropy for j in order[: n + 1]) < value}


def _factor(row, guesses, value, probs):
    order = sorted(guesses, key=lambda i: -guesses[i].probability)
    sizes = [n for n, i in enumerate(order, 1) if (n + 1) * (1 - guesses[i].probability) < value]
    return set(order[: max(sizes, default=1)])


def _count(row, guesses, value, probs):
    length, block_length = row.settings["max_new_tokens"], row.settings["block_length"]
    if row.settings["attention"] == "block_causal" and length % block_length:
        counts = scheduled_counts(block_length, block_length, round(value * block_length / length))[0]
    else:
        # The tokens after the last whole block are decided as those in it.
        counts = scheduled_counts(length, block_length, value)
        counts = counts[min(row.first, len(counts) - 1)]
    from_left = row.settings.get("commit_order") == "left_to_right"
    order = sorted(guesses, key=lambda i: i if from_left else -guesses[i].probability)
    return set(order[: counts[min(row.step, len(counts) - 1)]])


def _prefix(row, guesses, value, probs):
    order = sorted(guesses)
    return set(order[: max(1, next((n for n, i in enumerate(order) if guesses[i].probability < value), len(order)))])


def _stable(row, guesses, value, probs):
    """Returns places whose divergence from the pass before was small in enough passes (KLASS)."""
    seen, ready = {}, set()
    for i, guess in guesses.items():
        passes, p = 0, probs[i]
        if i in row.seen:
            before, passes = row.seen[i]
            divergence = (p * ((p + 1e-12).log() - (before + 1e-12).log())).sum()
            passes = passes + 1 if divergence < value else 0
        seen[i] = (p, passes)
        if passes >= row.settings["kl_history_length"] and guess.probability > row.settings["kl_confidence"]:
            ready.add(i)
    row.seen = seen
    return ready or {max(guesses, key=lambda i: guesses[i].probability)}


_RULES = {
    "one": lambda row, guesses, value, probs: {max(guesses, key=lambda i: guesses[i].probability)},
    "entropy_threshold": _threshold,
    "confidence_threshold": _confidence,
    "entropy_bound": _bound,
    "entropy_budget": _budget,
    "confidence_factor": _factor,
    "denoising_steps": _count,
    "soft_threshold": _prefix,
    "kl_threshold": _stable,
}


def make_revise(settings: dict) -> Callable:
    if settings.get("revocation_threshold"):
        return revise_by_verification
    if settings.get("editing_threshold", 1) < 1:
        return revise_by_editing
    if settings.get("soft_threshold") is not None:
        return revise_softly
    return lambda row, probs, guesses, chosen: ({}, set())


def revise_by_verification(row, probs, guesses, chosen):
    decided = {i: probs[i, row.tokens[i]].item() for i in row.decided()}
    limit = sum(row.steps[i] == row.nfe - 1 for i in decided) - 1 if len(chosen) > 1 else 0
    doubtful = sorted((i for i in decided if decided[i] < row.settings["revocation_threshold"]), key=decided.get)
    return dict.fromkeys(doubtful[: max(limit, 0)], row.mask), set()


def revise_by_editing(row, probs, guesses, chosen):
    best = {i: make_guess(probs[i], row.mask) for i in row.decided()}
    edits = {
        i: guess.token
        for i, guess in best.items()
        if guess.token != row.tokens[i] and guess.probability > row.settings["editing_threshold"]
    }
    post_steps = 0 if guesses else row.post_steps + 1
    is_over = chosen == set(guesses) and post_steps >= row.settings["max_post_steps"]
    return edits, set() if is_over else {*edits, *guesses}


def revise_softly(row, probs, guesses, chosen):
    best = {i: make_guess(probs[i], row.mask) for i in row.decided()}
    changes = {i: guess.token for i, guess in best.items() if guess.token != row.tokens[i]}
    certainty = {i: guess.probability for i, guess in (best | guesses).items()}
    row.certainty |= certainty
    pending = set()
    for block in row.blocks[row.first : row.last + 1]:
        is_over = block == row.blocks[row.first] and row.step + 1 >= len(block)
        has_unsure = any(certainty[i] < 0.9 for i in block if i in certainty)
        if has_unsure and not is_over and {*chosen, *changes} & set(block):
            pending |= set(block) & certainty.keys()
    return changes, pending


def steps_in_block(row, run, block_length):
    """Returns the pass within its block, from 1, that set each token, from the pass within the canvas, from 0."""
    steps, previous, last = [], -1, -1
    for place, step in enumerate(row.commit_step.tolist()):
        if (len(run["prompt_ids"]) + place) % block_length == 0:
            previous = last
        steps.append(step - previous)
        last = max(last, step)
    return steps
