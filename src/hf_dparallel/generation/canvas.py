# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The sequences being decoded: prompts, masks, and how far each row has come.

Rows never wait for one another. Each has its own current block and moves to the next one when that is decided; a
finished row leaves, and another may take its place. So a row meets the same states in a batch as alone.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad


# More than any number of a block or column.
_BEYOND = 2**31


@dataclass
class FinishedRow:
    """What was decoded of one prompt.

    Args:
        index (`int`): the number that the prompt was added under.
        tokens (`torch.LongTensor` of shape `(max_new_tokens,)`): the new tokens, padding after the end of the answer;
            when infilling, the whole prompt.
        commit_step (`torch.LongTensor` of the shape of `tokens`): the pass that committed each token, -1 for none.
        nfe (`int`): forward passes that the row took part in.
        num_tokens (`int`): decoded tokens, up to and including the first end-of-sequence token.
        num_revisions (`int`): how often a decided token was changed or taken back.
        is_nan (`bool`): whether it is finished because the model predicted NaN.
    """

    index: int
    tokens: torch.LongTensor
    commit_step: torch.LongTensor
    nfe: int
    num_tokens: int
    num_revisions: int
    is_nan: bool

    @property
    def tokens_per_forward(self) -> float:
        """Decoded tokens over forward passes."""
        return self.num_tokens / self.nfe if self.nfe else 0.0


@dataclass
class RowProgress:
    """What is known of a row on its way.

    Args:
        tokens (`list[int]`): the new tokens before the first one that may still change, up to and including the first
            end-of-sequence token.
        nfe (`int`): forward passes so far.
    """

    tokens: list[int]
    nfe: int


@dataclass
class RowStatus:
    """What the host knows of a row. Lengths count the new tokens from the first one; when infilling, all tokens."""

    # The first and the last block whose masks may be decided.
    open_from: int
    open_to: int
    # How many masks there are in those blocks, and how many decided tokens that may be revised.
    num_open: int
    num_revisable: int
    # Tokens before the first unsettled one, those of them that stay as they are, and tokens up to and including the
    # first end token.
    num_decided: int
    num_final: int
    length_to_eos: int
    # Tokens of the answer: what follows is padding.
    length: int
    num_revisions: int
    is_nan: bool
    is_finished: bool = False


class Canvas:
    """The rows being decoded: left-padded prompts with the mask tokens to decide.

    Tensors have one line a row and one column a token, and rows end at the same column.

    Args:
        config ([`DiffusionGenerationConfig`]): resolved.
        width_multiple (`int`): the width is a multiple of this, for code that is compiled for each width.
        whole_blocks (`bool`): whether blocks are counted from the first token of a row, as block-causal models do. The
            end of the prompt may then share the first block with new tokens, and further masks behind the answer
            complete the last block.
        revises (`bool`): whether decided tokens of the open blocks may change.
    """

    # (rows, width). `block` is the number of the block that a column belongs to, below 0 in the prompt; `place` the
    # number of the token in the answer, more than any in the prompt.
    sequences: torch.LongTensor
    attention_mask: torch.LongTensor
    position_ids: torch.LongTensor
    block: torch.LongTensor
    place: torch.LongTensor
    masked: torch.BoolTensor
    is_open: torch.BoolTensor
    # The masks, and decided tokens that keep their row in its block.
    unsettled: torch.BoolTensor
    commit_step: torch.LongTensor
    # The probability of each decided token, if it counts after the pass that decided it.
    confidence: torch.FloatTensor
    # (rows,)
    nfe: torch.LongTensor
    step_in_block: torch.LongTensor
    open_from: torch.LongTensor
    open_to: torch.LongTensor
    num_revisions: torch.LongTensor
    # Passes since the open blocks had a mask.
    post_steps: torch.LongTensor

    def __init__(self, config: Any, width_multiple: int = 1, whole_blocks: bool = False, revises: bool = False):
        self.config = config
        self.max_new_tokens = config.max_new_tokens
        self.revises = revises
        self.width_multiple = width_multiple
        self.whole_blocks = whole_blocks
        # Whether every pass predicts masks of blocks that are not open yet.
        is_cut_off = config.suffix_length is not None or config.cache_implementation == "dual"
        self.predicts_ahead = not whole_blocks and not is_cut_off
        self._widest = 0
        self.row_ids: list[int] = []
        self.prompt_lengths: list[int] = []
        self.num_masks: list[int] = []
        self.row_nfe: list[int] = []
        self.status: list[RowStatus] = []
        # What fills up each of the wide tensors on the left.
        self._padding = {
            "sequences": config.padding_token_id,
            "attention_mask": 0,
            "position_ids": 0,
            "block": -1,
            "place": _BEYOND,
            "masked": False,
            "unsettled": False,
            "commit_step": -1,
            "confidence": 1,
        }

    def __len__(self) -> int:
        return len(self.row_ids)

    @property
    def width(self) -> int:
        """Number of columns: those of the longest prompt and of the new tokens, and padding.

        For compiled code it does not fall when the row with the longest prompt leaves.
        """
        width = max(map(self._length, self.prompt_lengths), default=self.max_new_tokens)
        if self.width_multiple > 1:
            self._widest = width = max(self._widest, -(-width // self.width_multiple) * self.width_multiple)
        return width

    @property
    def is_padded(self) -> bool:
        """Whether a row has padding."""
        return min(map(self._length, self.prompt_lengths)) < self.width

    def length(self, row: int) -> int:
        """The columns that are no padding."""
        return self._length(self.prompt_lengths[row])

    def prompt_start(self, row: int) -> int:
        """The column of the first token that is no padding."""
        return self.width - self.length(row)

    def answer_start(self, row: int) -> int:
        """The column of the first new token; when infilling, of the first token."""
        return self.prompt_start(row) + (self.prompt_lengths[row] if self.max_new_tokens else 0)

    def answer_end(self, row: int) -> int:
        """The column behind the last token of the answer."""
        return self.answer_start(row) + self.answer_length(row)

    def answer_length(self, row: int) -> int:
        """The new tokens; when infilling, all tokens."""
        return self.max_new_tokens or self.prompt_lengths[row]

    def open_edges(self, row: int) -> tuple[int, int]:
        """The columns at which the open blocks of a row begin and end."""
        status, length = self.status[row], self.config.block_length
        origin = self.prompt_start(row) + self._first_position(self.prompt_lengths[row])
        start, end = origin + status.open_from * length, origin + (status.open_to + 1) * length
        return max(start, self.prompt_start(row)), min(end, self.width)

    def add(self, row_ids: list[int], input_ids: torch.LongTensor, attention_mask: torch.LongTensor) -> None:
        """Adds rows: left-padded prompts and their attention mask, both `(rows, prompt_length)`."""
        prompt_lengths = attention_mask.sum(dim=1, keepdim=True)
        sequences, attention_mask = self._with_masks(input_ids, attention_mask)
        masked = (sequences == self.config.mask_token_id) & attention_mask.bool()
        # Positions count from the first token of the row, whatever the padding.
        position_ids = (attention_mask.cumsum(dim=1) - 1).clamp(min=0)
        block = (position_ids - self._first_position(prompt_lengths)).div(
            self.config.block_length, rounding_mode="floor"
        )
        block = block.masked_fill(attention_mask == 0, -1)
        place = position_ids - (prompt_lengths if self.max_new_tokens else 0)
        place = place.masked_fill((attention_mask == 0) | (place < 0), _BEYOND)
        first_block = _first(block, masked)
        added = {
            "sequences": sequences,
            "attention_mask": attention_mask,
            "position_ids": position_ids,
            "block": block,
            "place": place,
            "masked": masked,
            "unsettled": masked,
            "commit_step": torch.full_like(sequences, -1),
            "confidence": torch.ones_like(sequences, dtype=torch.float32),
            "nfe": torch.zeros_like(first_block),
            "step_in_block": torch.zeros_like(first_block),
            "open_from": first_block,
            "open_to": first_block,
            "num_revisions": torch.zeros_like(first_block),
            "post_steps": torch.zeros_like(first_block),
        }
        # Those behind the answer are no part of it.
        num_masks = (masked & (place < (self.max_new_tokens or _BEYOND))).sum(dim=1)
        lengths, num_masks = torch.stack([prompt_lengths[:, 0], num_masks]).tolist()
        previous = {name: getattr(self, name) for name in added} if self.row_ids else {}
        self.row_ids += row_ids
        self.prompt_lengths += lengths
        self.num_masks += num_masks
        self.row_nfe += [0] * len(row_ids)
        for name, tensor in added.items():
            parts = [previous[name], tensor] if previous else [tensor]
            setattr(self, name, torch.cat([self._fitted(name, part) for part in parts]))
        self._eos_token_ids = sequences.new_tensor(self.config.eos_token_ids)
        self._read_status(None)

    def begin(self, row: int, tokens: list[int]) -> None:
        """Begins the answer of a row that was just added with tokens that are given."""
        self.write(row, 0, tokens)
        first_block = _first(self.block, self.unsettled)
        self.open_from[row] = self.open_to[row] = first_block[row]
        self._read_status(None)

    def write(self, row: int, place: int, tokens: list[int]) -> None:
        """Writes tokens that are given in place of the masks from a number of the answer on, up to its end."""
        start = self.answer_start(row) + place
        columns = slice(start, min(start + len(tokens), self.answer_end(row)))
        self.sequences[row, columns] = self.sequences.new_tensor(tokens)[: columns.stop - start]
        self.masked[row, columns] = self.unsettled[row, columns] = False
        self.commit_step[row, columns] = self.row_nfe[row]

    def new_columns(self) -> torch.LongTensor:
        """The columns of the new tokens (when infilling, all), `(rows, columns)`, where rows end with the answer."""
        first = self.width - self.max_new_tokens if self.max_new_tokens else 0
        return torch.arange(first, self.width, device=self.masked.device).expand(len(self), -1)

    def open_columns(self) -> tuple[torch.LongTensor, torch.BoolTensor]:
        """The columns that may be decided in this pass: the masks of each row's open blocks, and what may be revised.

        Returns:
            `tuple`: the columns, the masks first, and which of them are masks, both `(rows, columns)`. A row that has
            fewer of them than another is filled up with others.
        """
        num_columns = max(status.num_open + status.num_revisable for status in self.status)
        rank = self.is_open.int()
        if self.revises:
            rank = 2 * rank + self.revisable.int()
        columns = rank.argsort(dim=1, descending=True, stable=True)[:, :num_columns]
        return columns, self.is_open.gather(1, columns)

    @property
    def revisable(self) -> torch.BoolTensor:
        """The decided tokens of the open blocks, `(rows, width)`; none that the prompt gave."""
        in_open_blocks = (self.block >= self.open_from[:, None]) & (self.block <= self.open_to[:, None])
        return in_open_blocks & (self.commit_step >= 0)

    def commit(
        self,
        columns: torch.LongTensor,
        tokens: torch.LongTensor,
        accepted: torch.BoolTensor,
        unsettled: torch.BoolTensor | None = None,
        confidence: torch.FloatTensor | None = None,
    ) -> None:
        """Writes the accepted tokens of a pass and counts the pass; all arguments are `(rows, columns)`.

        Where a decided token is accepted it is revised; the mask token takes it back. A row stays in its block also
        where tokens are `unsettled`, though they are decided. The `confidence` is kept for the next pass.
        """
        is_new = torch.zeros_like(self.masked).scatter_(1, columns, accepted)
        self.sequences = torch.where(is_new, self.sequences.scatter(1, columns, tokens), self.sequences)
        self.commit_step = torch.where(is_new, self.nfe[:, None], self.commit_step)
        if self.revises:
            self.num_revisions += (is_new & ~self.masked).sum(dim=1)
            self.masked = torch.where(is_new, self.sequences == self.config.mask_token_id, self.masked)
            self.commit_step = self.commit_step.masked_fill(self.masked, -1)
            self.post_steps = torch.where(self.is_open.any(dim=1), 0, self.post_steps + 1)
        else:
            self.masked = self.masked ^ is_new
        self.unsettled = self.masked
        if unsettled is not None:
            self.unsettled = self.masked | torch.zeros_like(self.masked).scatter_(1, columns, unsettled)
        if confidence is not None:
            self.confidence = self.confidence.scatter(1, columns, confidence.to(self.confidence.dtype))
        self.nfe += 1
        self.step_in_block += 1
        self.row_nfe = [nfe + 1 for nfe in self.row_nfe]

    def advance(self, is_nan: torch.BoolTensor) -> None:
        """Moves each row whose block is decided to its next one, opens further blocks, and informs the host.

        Args:
            is_nan (`torch.BoolTensor` of shape `(rows,)`): the rows for which the model predicted NaN.
        """
        first_block = _first(self.block, self.unsettled)
        self.step_in_block *= first_block == self.open_from
        self.open_from = first_block
        self.open_to = torch.maximum(self.open_to, first_block)
        if self.config.max_active_blocks > 1:
            self._open_next_block()
        self._read_status(is_nan)

    def end_row(self, row: int, length: int) -> None:
        """Ends an answer after so many tokens, whatever follows."""
        self.status[row].length, self.status[row].is_finished = length, True

    def pop_finished(self) -> list[FinishedRow]:
        """Removes the finished rows and returns what was decoded in them."""
        finished = [row for row, status in enumerate(self.status) if status.is_finished]
        results = [self._result(row) for row in finished]
        if finished:
            self._keep([row for row, status in enumerate(self.status) if not status.is_finished])
        return results

    def progress(self) -> dict[int, RowProgress]:
        """How far each row has come, by its number."""
        first = self._first_answer_start()
        tokens = self.sequences[:, first:].tolist() if self.row_ids else []
        progress = {}
        for row, (row_id, status) in enumerate(zip(self.row_ids, self.status, strict=True)):
            start = self.answer_start(row) - first
            final = slice(start, start + min(status.num_final, status.length_to_eos))
            progress[row_id] = RowProgress(tokens[row][final], self.row_nfe[row])
        return progress

    def remove(self, row_ids: Collection[int]) -> None:
        """Removes rows that are not finished."""
        if row_ids:
            self._keep([row for row, row_id in enumerate(self.row_ids) if row_id not in row_ids])

    def _length(self, prompt_length: int) -> int:
        """The columns of a row with such a prompt."""
        length = prompt_length + self.max_new_tokens
        return length + (-length % self.config.block_length if self.whole_blocks else 0)

    def _first_answer_start(self) -> int:
        """The first column at which a row has a new token."""
        return min(map(self.answer_start, range(len(self))), default=0)

    def _first_position(self, prompt_length):
        """The position at which the first block with new tokens begins; lengths are an `int` or a tensor.

        When infilling, blocks end where the prompt ends, and the first one may be shorter.
        """
        block_length = self.config.block_length
        if self.whole_blocks:
            return prompt_length // block_length * block_length
        return prompt_length if self.max_new_tokens else -(-prompt_length % block_length)

    def _with_masks(
        self, input_ids: torch.LongTensor, attention_mask: torch.LongTensor
    ) -> tuple[torch.LongTensor, torch.LongTensor]:
        """Appends the masks to prompts and their attention mask, so that all rows end at the same column."""
        block_length = self.config.block_length
        num_masks = self.max_new_tokens + (block_length - 1 if self.whole_blocks else 0)
        sequences = pad(input_ids, (0, num_masks), value=self.config.mask_token_id)
        attention_mask = pad(attention_mask, (0, num_masks), value=1)
        if not self.whole_blocks:
            return sequences, attention_mask
        # Masks that do not belong to a whole block go to the left edge, as padding.
        num_beyond = attention_mask.sum(dim=1, keepdim=True) % block_length
        columns = torch.arange(sequences.shape[1], device=sequences.device) - num_beyond
        source = columns % sequences.shape[1]
        return sequences.gather(1, source), attention_mask.gather(1, source) * (columns >= 0)

    def _open_next_block(self) -> None:
        """Opens one more block in the rows whose last open block is decided to the given fraction."""
        in_last = self.block == self.open_to[:, None]
        num_masked = (self.masked & in_last).sum(dim=1)
        # A block may be shorter than the others: the last one, and when infilling the first one.
        is_decided = num_masked <= (1 - self.config.block_add_threshold) * in_last.sum(dim=1)
        has_room = self.open_to - self.open_from + 1 < self.config.max_active_blocks
        # No mask is beyond the last block.
        is_last = self.open_to >= self.block[:, -1]
        self.open_to += (is_decided & has_room & ~is_last).long()

    def _read_status(self, is_nan: torch.BoolTensor | None) -> None:
        """The one transfer from the device in each pass."""
        self.is_open = self.masked & (self.block <= self.open_to[:, None])
        # An end token that is infilled ends nothing.
        first_eos = torch.full_like(self.open_from, _BEYOND)
        if self.max_new_tokens:
            first = self._first_answer_start()
            is_eos = (self.sequences[:, first:, None] == self._eos_token_ids).any(dim=-1)
            first_eos = _first(self.place[:, first:], is_eos)
        fields = [
            self.open_from,
            self.open_to,
            self.is_open.sum(dim=1),
            _first(self.place, self.unsettled),
            first_eos,
        ]
        if is_nan is not None or self.revises:
            fields.append(torch.zeros_like(self.nfe) if is_nan is None else is_nan.long())
        if self.revises:
            first_open = _first(self.place, self.block >= self.open_from[:, None])
            fields += [self.revisable.sum(dim=1), self.num_revisions, first_open]
        self.status = [self._status(row, *counts) for row, counts in enumerate(torch.stack(fields, dim=1).tolist())]

    def _status(
        self,
        row: int,
        open_from: int,
        open_to: int,
        num_open: int,
        first_mask: int,
        first_eos: int,
        is_nan: int = 0,
        num_revisable: int = 0,
        num_revisions: int = 0,
        first_open: int = _BEYOND,
    ) -> RowStatus:
        longest = self.answer_length(row)
        num_decided, length_to_eos = min(first_mask, longest), min(first_eos + 1, longest)
        length = length_to_eos if self.config.stop_at_eos else longest
        is_finished = bool(is_nan) or num_decided >= length
        return RowStatus(
            open_from=open_from,
            open_to=open_to,
            num_open=num_open,
            num_revisable=num_revisable,
            num_decided=num_decided,
            num_final=num_decided if is_finished else min(num_decided, first_open),
            length_to_eos=length_to_eos,
            length=length,
            num_revisions=num_revisions,
            is_nan=bool(is_nan),
            is_finished=is_finished,
        )

    def _result(self, row: int) -> FinishedRow:
        status, answer = self.status[row], slice(self.answer_start(row), self.answer_end(row))
        tokens, commit_step = self.sequences[row, answer].clone(), self.commit_step[row, answer].clone()
        tokens[status.length :] = self.config.padding_token_id
        commit_step[status.length :] = -1
        num_tokens = self.num_masks[row] - len(tokens) + min(status.length, status.length_to_eos)
        return FinishedRow(
            index=self.row_ids[row],
            tokens=tokens,
            commit_step=commit_step,
            nfe=self.row_nfe[row],
            num_tokens=num_tokens,
            num_revisions=status.num_revisions,
            is_nan=status.is_nan,
        )

    def _keep(self, rows: list[int]) -> None:
        for name in ("row_ids", "prompt_lengths", "num_masks", "row_nfe", "status"):
            setattr(self, name, [getattr(self, name)[row] for row in rows])
        if rows:
            index = torch.tensor(rows, device=self.masked.device)
            for name in (
                *self._padding,
                "nfe",
                "step_in_block",
                "open_from",
                "open_to",
                "num_revisions",
                "post_steps",
            ):
                setattr(self, name, self._fitted(name, getattr(self, name)[index]))
            self.is_open = self.masked & (self.block <= self.open_to[:, None])

    def _fitted(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Adds or removes padding on the left."""
        if name not in self._padding:
            return tensor
        return pad(tensor, (self.width - tensor.shape[1], 0), value=self._padding[name])


def _first(values: torch.LongTensor, marked: torch.BoolTensor) -> torch.LongTensor:
    """The least of the ascending `values` of each row at its marked columns, more than any if none is marked."""
    return torch.where(marked, values, _BEYOND).amin(dim=1)
