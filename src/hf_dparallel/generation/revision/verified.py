# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Verified commits: decided tokens that turn out to be improbable are masked again."""

from typing import Any

import torch
from torch.nn.functional import pad

from hf_dparallel_rules.certainty import TokenPrediction
from hf_dparallel_rules.commit_rules import commit_by_count

from ...attention_masks import as_attention_mask
from ..configuration import DiffusionGenerationConfig
from ..hooks.base import Change, DecodingHook
from ..plan import Pass


class VerifiedCommits(DecodingHook):
    """Takes back decided tokens that the model finds improbable once it knows more of their block (WINO).

    The prediction of a decided token comes from a copy of the open blocks in which nothing is decided, beside the
    canvas in the same pass. Nothing outside the copy sees it. A token of the copy has the position of the column that
    it copies, and sees all of canvas and copy, except for the token that it predicts. A pass that commits more than
    one token masks decided ones below the threshold again, the least probable first, and fewer than the pass before
    has committed. So after any number of passes at least as many tokens are decided, and a block takes no more passes
    than it has tokens (https://huggingface.co/papers/2507.18578).
    """

    revises = True
    setting = "revocation_threshold"

    def __init__(self, config: DiffusionGenerationConfig):
        self.threshold = config.revocation_threshold
        self.mask_token_id = config.mask_token_id

    def extend(self, planned: Pass) -> Pass:
        """Appends the copy, and has the decided tokens predicted there."""
        canvas = self.canvas
        if not any(status.num_revisable for status in canvas.status):
            return planned

        columns = self._columns()
        # Only tokens that were masked when their block was entered; the rest fills up shorter rows.
        is_seen = (canvas.is_open | canvas.revisable).gather(1, columns)
        input_ids = canvas.sequences.gather(1, columns).masked_fill(is_seen, self.mask_token_id)
        position_ids = canvas.position_ids.gather(1, columns)

        is_verified = canvas.revisable.gather(1, planned.scored)
        in_copy = planned.length + planned.scored - columns[:, :1]
        return planned._replace(
            scored=torch.where(is_verified, in_copy, planned.scored),
            appended=torch.stack([input_ids, position_ids]),
            mask=self._mask(planned, columns, is_seen),
        )

    def _mask(self, planned: Pass, columns: torch.LongTensor, is_seen: torch.BoolTensor) -> Any:
        """Returns the mask of a pass and of the copy, which sees itself where `is_seen`."""
        canvas = self.canvas
        model = self.model
        length = columns.shape[1]
        seen = canvas.attention_mask if planned.seen is None else planned.seen
        seen = seen[:, None, : planned.length].bool()

        # All but the token that is predicted.
        keys = canvas.column_ids[: planned.length]
        column = columns[:, :, None]
        is_other = keys != column + int(model.shift_logits)
        # Every model predicts a first token at its own column.
        is_other &= (keys != column) | (canvas.position_ids.gather(1, columns)[:, :, None] > 0)

        of_canvas = pad(seen, (0, length)).expand(-1, planned.length, -1)
        of_copy = torch.cat([seen & is_other, is_seen[:, None].expand(-1, length, -1)], dim=2)
        visible = torch.cat([of_canvas, of_copy], dim=1)
        return as_attention_mask(model.config.get_text_config(), visible, model.dtype)

    def _columns(self) -> torch.LongTensor:
        """Returns the columns of open blocks, `(rows, longest)`, after the one that predicts the first of them."""
        canvas = self.canvas
        shift = int(self.model.shift_logits)
        num_blocks = max(status.open_to - status.open_from + 1 for status in canvas.status)
        length = min(num_blocks * canvas.config.block_length + shift, canvas.width)
        start = (canvas.block < canvas.open_from[:, None]).sum(dim=1, keepdim=True)
        offsets = torch.arange(-shift, length - shift, device=start.device)
        return start.clamp(shift, canvas.width - length + shift) + offsets

    def change(self, prediction: TokenPrediction, change: Change) -> Change:
        canvas = self.canvas
        columns = prediction.columns
        is_decided = prediction.revisable
        probability = _probability(prediction, canvas.sequences.gather(1, columns))

        # Fewer than the pass before has committed, and none where this one commits a single token.
        is_of_last_pass = canvas.commit_step.gather(1, columns) == canvas.nfe[:, None] - 1
        limit = (is_decided & is_of_last_pass).sum(dim=1) - 1
        limit = limit.masked_fill(change.commits.sum(dim=1) <= 1, 0)
        revoked = commit_by_count(-probability, is_decided & (probability < self.threshold), limit)
        tokens = prediction.tokens.masked_fill(revoked, self.mask_token_id)
        return Change(tokens=tokens, commits=change.commits | revoked)


def _probability(prediction: TokenPrediction, tokens: torch.LongTensor) -> torch.Tensor:
    """Returns the probability of `tokens`, from the probability of the predicted tokens."""
    of_predicted = prediction.logits.gather(-1, prediction.tokens[..., None]).squeeze(-1)
    of_given = prediction.logits.gather(-1, tokens[..., None]).squeeze(-1)
    difference = (of_given - of_predicted).to(prediction.confidence.dtype)
    return (prediction.confidence.log() + difference).exp()
