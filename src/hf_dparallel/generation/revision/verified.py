# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Verified commits: decided tokens that turn out to be improbable are masked again."""

from typing import Any

import torch

from ..commit_rules import commit_by_count
from ..parts import Change, RowPart, revision_way
from ..prediction import TokenPrediction
from ..settings import add_setting


@revision_way("revocation_threshold")
class VerifiedCommits(RowPart):
    """Takes back decided tokens that the model finds improbable once it knows more of their block (WINO).

    The prediction of a decided token comes from a place that does not see it ([`~shadow.Shadow`]). In a pass that
    commits more than one token, those below the threshold are masked again, the least probable first, and fewer than
    the pass before has committed. So after any number of passes at least as many tokens are decided, and a block takes
    no more passes than it has tokens (https://huggingface.co/papers/2507.18578).
    """

    revises = True

    def __init__(self, config: Any):
        self.threshold = config.revocation_threshold
        self.mask_token_id = config.mask_token_id

    def change(self, prediction: TokenPrediction, change: Change) -> Change:
        canvas, columns, accepted = self.canvas, prediction.columns, change.accepted
        is_decided = canvas.revisable.gather(1, columns)
        probability = _probability(prediction, canvas.sequences.gather(1, columns))
        is_of_last_pass = canvas.commit_step.gather(1, columns) == canvas.nfe[:, None] - 1
        limit = (is_decided & is_of_last_pass).sum(dim=1) - 1
        limit = limit.masked_fill(accepted.sum(dim=1) <= 1, 0)
        revoked = commit_by_count(-probability, is_decided & (probability < self.threshold), limit)
        return Change(prediction.tokens.masked_fill(revoked, self.mask_token_id), accepted | revoked)


def _probability(prediction: TokenPrediction, tokens: torch.LongTensor) -> torch.Tensor:
    """Probability of `tokens`, from that of the predicted tokens."""
    logits = prediction.logits
    predicted, given = (logits.gather(-1, ids[..., None])[..., 0] for ids in (prediction.tokens, tokens))
    return (prediction.confidence.log() + (given - predicted).to(prediction.confidence.dtype)).exp()


add_setting(
    "revocation_threshold",
    "revision",
    float,
    off=0.0,
    noun="a probability",
    maximum=1,
    is_swept=True,
    source="https://huggingface.co/papers/2507.18578",
    counts_as=("revision",),
    needs=("commit rule with a threshold",),
    not_with=("revision", "compile_config"),
    model={
        "takes_visibility": "hides tokens from some places of a pass, by a mask of four dimensions that "
        '{model} takes with `attn_implementation="sdpa"`, if at all',
        "is_not_block_causal": "verifies tokens by a second copy of their block, for which {model}, a "
        "block-causal model, has no place",
    },
    help="Verified commits: every pass also asks the model for the decided tokens of the open block, each "
    "hidden from the places that predict it, and masks those again whose probability is below this. "
    "Needs a commit rule with a threshold, which may then be bolder.",
)
