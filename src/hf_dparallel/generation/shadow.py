# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What verified commits add to a pass: predictions of decided tokens by places that do not see them."""

from dataclasses import dataclass

import torch
from torch.nn.functional import pad
from transformers import PreTrainedModel

from ..attention_masks import Visibility, make_attention_mask
from .canvas import Canvas


@dataclass
class Shadow:
    """A copy of each row's open blocks in which nothing is decided, beside the canvas in the same pass.

    A place of the copy has the position of the one it stands for. Nothing outside the copy sees it. It sees all of the
    copy and of the canvas, except for the token that it predicts (https://huggingface.co/papers/2507.18578).

    Args:
        input_ids, position_ids (`torch.LongTensor` of shape `(rows, length)`): what is fed to the model.
        columns (`torch.LongTensor` of shape `(rows, length)`): the columns of the canvas that the places stand for,
            one after the other.
        is_seen (`torch.BoolTensor` of shape `(rows, length)`): which places the others see: those that were masked
            when their block was entered. The rest is there because another row has more of them.
        is_verified (`torch.BoolTensor` of shape `(rows, width)`): the columns of the canvas that the copy predicts.
        attention_mask (`torch.LongTensor` of shape `(rows, keys)`): which of the first columns of the canvas are seen.
        lead (`int`): how many places earlier the model predicts a token.
    """

    input_ids: torch.LongTensor
    position_ids: torch.LongTensor
    columns: torch.LongTensor
    is_seen: torch.BoolTensor
    is_verified: torch.BoolTensor
    attention_mask: torch.LongTensor
    lead: int

    def of_rows(self, rows: torch.LongTensor | None) -> "Shadow":
        """The copies of some rows; `None` for all."""
        if rows is None:
            return self
        return Shadow(**{name: value if name == "lead" else value[rows] for name, value in vars(self).items()})

    def appended(
        self,
        input_ids: torch.LongTensor,
        position_ids: torch.LongTensor,
        columns: torch.LongTensor,
        scored: torch.LongTensor,
    ) -> tuple[torch.LongTensor, torch.LongTensor, torch.LongTensor]:
        """Inputs with the copy behind them, and where the tokens at `columns` are predicted in them.

        Args:
            input_ids, position_ids (`torch.LongTensor` of shape `(rows, inputs)`): columns of the canvas.
            columns (`torch.LongTensor` of shape `(rows, columns)`): columns of the canvas to predict.
            scored (`torch.LongTensor` of shape `(rows, columns)`): where they are in the inputs.
        """
        in_copy = input_ids.shape[1] + columns - self.columns[:, :1]
        scored = torch.where(self.is_verified.gather(1, columns), in_copy, scored)
        inputs = torch.cat([input_ids, self.input_ids], dim=1)
        return inputs, torch.cat([position_ids, self.position_ids], dim=1), scored

    def make_mask(self, model: PreTrainedModel, num_inputs: int):
        """The mask of a pass that computes `num_inputs` columns of the canvas and the copy."""
        rows, width = self.attention_mask.shape
        return make_attention_mask(
            model.config.get_text_config(),
            self._visibility(num_inputs, width),
            (rows, num_inputs + self.columns.shape[1], width + self.columns.shape[1]),
            key_mask=torch.cat([self.attention_mask.bool(), self.is_seen], dim=1),
            dtype=model.dtype,
            device=self.attention_mask.device,
        )

    def _visibility(self, num_inputs: int, width: int) -> Visibility:
        # A first token is predicted at its own place by every model.
        unseen = [self.columns + self.lead, self.columns.masked_fill(self.position_ids > 0, -1)]
        target, first = (pad(columns, (num_inputs, 0), value=-1) for columns in unseen)

        def is_visible(row, head, query, key):
            is_unseen = (key == target[row, query]) | (key == first[row, query])
            return torch.where(key < width, ~is_unseen, query >= num_inputs)

        return is_visible


def make_shadow(canvas: Canvas, lead: int, attention_mask: torch.LongTensor) -> Shadow | None:
    """The shadow of a pass; `None` where no decided token may be revised.

    Args:
        canvas ([`Canvas`]): the rows being decoded.
        lead (`int`): how many places earlier the model predicts a token. The copy begins that many earlier.
        attention_mask (`torch.LongTensor` of shape `(rows, keys)`): which of the first columns are seen.
    """
    if not any(status.num_revisable for status in canvas.status):
        return None
    num_blocks = max(status.open_to - status.open_from + 1 for status in canvas.status)
    length = min(num_blocks * canvas.config.block_length + lead, canvas.width)
    first = (canvas.block < canvas.open_from[:, None]).sum(dim=1, keepdim=True)
    columns = (first - lead).clamp(0, canvas.width - length) + torch.arange(length, device=first.device)
    is_verified = canvas.revisable
    is_seen = (canvas.is_open | is_verified).gather(1, columns)
    return Shadow(
        input_ids=canvas.sequences.gather(1, columns).masked_fill(is_seen, canvas.config.mask_token_id),
        position_ids=canvas.position_ids.gather(1, columns),
        columns=columns,
        is_seen=is_seen,
        is_verified=is_verified,
        attention_mask=attention_mask,
        lead=lead,
    )
