# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Revision: decided tokens of the open blocks may change, until their row leaves the block."""

from typing import Any, NamedTuple, Protocol

import torch

from ..certainty import measure_certainty
from .canvas import Canvas
from .commit_rules import commit_by_count
from .prediction import TokenPrediction


class Change(NamedTuple):
    """What a pass writes, each `(rows, tokens)`.

    Args:
        tokens (`torch.LongTensor`): the tokens; the mask token takes one back.
        accepted (`torch.BoolTensor`): which of them are written.
        unsettled (`torch.BoolTensor`, *optional*): tokens that keep a row in its block though they are decided.
        confidence (`torch.FloatTensor`, *optional*): probabilities that the next pass needs.
    """

    tokens: torch.LongTensor
    accepted: torch.BoolTensor
    unsettled: torch.BoolTensor | None = None
    confidence: torch.FloatTensor | None = None


class Revision(Protocol):
    """Called in every pass, after the commit rule."""

    def __call__(self, prediction: TokenPrediction, masked: torch.BoolTensor, accepted: torch.BoolTensor) -> Change:
        """Returns what the pass writes.

        Args:
            prediction ([`TokenPrediction`]): of the masks of the open blocks, and of the tokens decided in them.
            masked, accepted (`torch.BoolTensor` of shape `(rows, tokens)`): which of them are masks, and which of
                these the commit rule decides.
        """


class VerifiedCommits:
    """Takes back decided tokens that the model finds improbable once it knows more of their block (WINO).

    The prediction of a decided token comes from a place that does not see it ([`~shadow.Shadow`]). In a pass that
    commits more than one token, those below the threshold are masked again, the least probable first, and fewer than
    the pass before has committed. So after any number of passes at least as many tokens are decided, and a block takes
    no more passes than it has tokens (https://huggingface.co/papers/2507.18578).
    """

    def __init__(self, config: Any, canvas: Canvas):
        self.canvas = canvas
        self.threshold = config.revocation_threshold
        self.mask_token_id = config.mask_token_id

    def __call__(self, prediction: TokenPrediction, masked: torch.BoolTensor, accepted: torch.BoolTensor) -> Change:
        canvas, columns = self.canvas, prediction.columns
        is_decided = canvas.revisable.gather(1, columns)
        probability = _probability(prediction, canvas.sequences.gather(1, columns))
        is_of_last_pass = canvas.commit_step.gather(1, columns) == canvas.nfe[:, None] - 1
        limit = (is_decided & is_of_last_pass).sum(dim=1) - 1
        limit = limit.masked_fill(accepted.sum(dim=1) <= 1, 0)
        revoked = commit_by_count(-probability, is_decided & (probability < self.threshold), limit)
        return Change(prediction.tokens.masked_fill(revoked, self.mask_token_id), accepted | revoked)


class Editing:
    """Replaces decided tokens where the model, which sees them, now prefers others (LLaDA2.1).

    A row stays in its blocks until a pass that began without a mask has replaced nothing, or until there were
    `max_post_steps` of these passes (https://huggingface.co/papers/2602.08676).
    """

    def __init__(self, config: Any, canvas: Canvas):
        self.canvas = canvas
        self.config = config

    def __call__(self, prediction: TokenPrediction, masked: torch.BoolTensor, accepted: torch.BoolTensor) -> Change:
        canvas, columns = self.canvas, prediction.columns
        # A replacement is never sampled.
        likeliest = measure_certainty(prediction.logits, self.config.mask_token_id)
        differs = likeliest.tokens != canvas.sequences.gather(1, columns)
        is_sure = likeliest.confidence > self.config.editing_threshold
        edited = canvas.revisable.gather(1, columns) & differs & is_sure
        is_full = ~(masked & ~accepted).any(dim=1)
        post_steps = (canvas.post_steps + 1).masked_fill(masked.any(dim=1), 0)
        is_over = is_full & (post_steps >= self.config.max_post_steps)
        tokens = torch.where(edited, likeliest.tokens, prediction.tokens)
        return Change(tokens, accepted | edited, (masked | edited) & ~is_over[:, None])


class SoftDecoding:
    """Decides every decided token anew, whatever its probability (DMax).

    A pass sees a decided token as a mixture of its embedding and that of the mask token ([`~mixture.mix_embeddings`]).
    A block is left when it is decided and either all its tokens have a probability of at least 0.9 or the pass has
    changed none of them, and at the latest after as many passes as it has tokens
    (https://huggingface.co/papers/2604.08302).
    """

    SURE = 0.9

    def __init__(self, config: Any, canvas: Canvas):
        self.canvas = canvas

    def __call__(self, prediction: TokenPrediction, masked: torch.BoolTensor, accepted: torch.BoolTensor) -> Change:
        canvas, columns = self.canvas, prediction.columns
        is_decided = canvas.revisable.gather(1, columns)
        changed = accepted | (is_decided & (prediction.tokens != canvas.sequences.gather(1, columns)))
        is_unsure = (masked | is_decided) & (prediction.confidence < self.SURE)
        block = canvas.block.gather(1, columns)
        is_same = block[:, :, None] == block[:, None, :]
        has_changed, has_unsure = ((is_same & marked[:, None, :]).any(dim=2) for marked in (changed, is_unsure))
        # The steps are those since the first open block was entered.
        open_from = canvas.open_from[:, None]
        block_length = (canvas.block == open_from).sum(dim=1)
        is_over = (canvas.step_in_block + 1 >= block_length)[:, None] & (block == open_from)
        unsettled = (masked | is_decided) & has_changed & has_unsure & ~is_over
        return Change(prediction.tokens, changed, unsettled, prediction.confidence)


def _probability(prediction: TokenPrediction, tokens: torch.LongTensor) -> torch.Tensor:
    """Probability of `tokens`, from that of the predicted tokens."""
    logits = prediction.logits
    predicted, given = (logits.gather(-1, ids[..., None])[..., 0] for ids in (prediction.tokens, tokens))
    return (prediction.confidence.log() + (given - predicted).to(prediction.confidence.dtype)).exp()


def make_revision(config: Any, canvas: Canvas) -> Revision | None:
    """The revision that a resolved configuration asks for, if any."""
    if config.is_soft:
        return SoftDecoding(config, canvas)
    if config.edits:
        return Editing(config, canvas)
    return VerifiedCommits(config, canvas) if config.revocation_threshold else None
