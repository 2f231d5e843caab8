# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The sequences being decoded: prompts, masks, and how far each row has come.

Rows never wait for one another. Each has its own open block and moves to the next one when that is decided; a
finished row leaves, and another may take its place. So a row meets the same states in a batch as alone.

Three numbers locate a token. Its *column* is its index in the tensors of the canvas, padding included, which changes
when rows of other lengths enter and leave. Its *position*, which the model gets, counts from the first token of its
row, prompt included. Its *place* counts from the first token of the answer.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch.nn.functional import pad

from ..attention_masks import mask_blocks
from .configuration import DiffusionGenerationConfig
from .decoded_row import DecodedRow, RowProgress


# More than any number of a block or column.
_BEYOND = 2**31


@dataclass
class RowStatus:
    """The state of a row, on the host. Lengths count the tokens of the answer; when infilling, all tokens."""

    longest: int
    stop_at_eos: bool
    # The first and the last block whose masks may be decided, and the masks in them.
    open_from: int
    open_to: int
    num_open: int
    # Tokens before the first unsettled one. Given as the place of the latter.
    num_decided: int
    # Tokens up to and including the first end token. Given as the place of the latter.
    length_to_eos: int = _BEYOND
    is_nan: bool = False
    # Decided tokens that may be revised, how often one was, and the first place of the open blocks.
    num_revisable: int = 0
    num_revisions: int = 0
    first_open: int = _BEYOND
    # The tokens of the answer, on the host, if the canvas reads them.
    answer: torch.LongTensor = None
    # Why the row was not decoded to its end.
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.num_decided = min(self.num_decided, self.longest)
        self.length_to_eos = min(self.length_to_eos + 1, self.longest)
        # The rest is padding.
        self.length = self.length_to_eos if self.stop_at_eos else self.longest
        self.is_finished = bool(self.is_nan) or self.num_decided >= self.length
        # Decided tokens that can no longer change.
        self.num_final = self.num_decided if self.is_finished else min(self.num_decided, self.first_open)


def _tensor(fill: float = 0, is_wide: bool = True) -> Any:
    """Declares a tensor `(rows, width)` or `(rows,)`; padding and, by default, new rows are filled with `fill`."""
    return field(default=None, metadata={"fill": fill, "is_wide": is_wide})


@dataclass(eq=False, repr=False)
class RowTensors:
    """The tensors of a canvas, indexed by row."""

    # Token ids, filled up with the padding token of the configuration.
    sequences: torch.LongTensor = _tensor()
    attention_mask: torch.LongTensor = _tensor()
    position_ids: torch.LongTensor = _tensor()
    # The number of the block that a column belongs to, below 0 in the prompt, and the position at which it begins.
    block: torch.LongTensor = _tensor(-1)
    block_start: torch.LongTensor = _tensor()
    # More than any place in the prompt.
    place: torch.LongTensor = _tensor(_BEYOND)
    masked: torch.BoolTensor = _tensor(False)
    # Everything except masks, and except decided tokens that keep their row in its block.
    settled: torch.BoolTensor = _tensor(True)
    # The pass that decided a token, -1 for none.
    commit_step: torch.LongTensor = _tensor(-1)
    nfe: torch.LongTensor = _tensor(is_wide=False)
    step_in_block: torch.LongTensor = _tensor(is_wide=False)
    open_from: torch.LongTensor = _tensor(is_wide=False)
    open_to: torch.LongTensor = _tensor(is_wide=False)
    num_revisions: torch.LongTensor = _tensor(is_wide=False)


@dataclass(eq=False, repr=False)
class RowState:
    """A tensor `(rows, width)` or `(rows,)` of a part. The canvas adds and removes its lines with the rows.

    Args:
        fill (`float`): its value in new rows and in padding.
        is_wide (`bool`): whether it has the columns of the canvas.
        value (`torch.Tensor`): the tensor. The part writes it.
    """

    fill: float
    is_wide: bool
    value: torch.Tensor = None


class Canvas(RowTensors):
    """The rows being decoded: left-padded prompts with the mask tokens to decide.

    Tensors have a line per row and a column per token, and rows end at the same column. Their width is a multiple of
    `width_multiple`, for code that is compiled for each width. Blocks follow the prompt. If `attention` is not "full",
    blocks may be counted from the first token of a row instead (`whole_blocks`): the end of the prompt may then share
    the first block with new tokens, and further masks after the answer complete the last block. With
    `revises`, decided tokens of the open blocks may change.

    With `first_alone`, the column before a block predicts the first token of the block, so this token does not depend
    on the rest of the block. It is decided alone, whatever its probability, as soon as its row enters the block, and
    never revised, as in the samplers of these models (Fast-dLLM v2, https://huggingface.co/papers/2509.26328). With
    several open blocks this applies to the first one only: the column before any other is not decided yet.
    """

    # `(rows, width)`: masks in the open blocks, and (only if a part revises) generated tokens there.
    is_open: torch.BoolTensor
    revisable: torch.BoolTensor
    # With `first_alone`: the first column of the first open block.
    is_first: torch.BoolTensor
    # Number of columns: the longest prompt with its new tokens, and padding. For compiled code it never falls.
    width: int
    # Whether a row has padding.
    is_padded: bool
    # 0, 1, ..., `(width,)`.
    column_ids: torch.LongTensor

    def __init__(
        self,
        config: DiffusionGenerationConfig,
        width_multiple: int = 1,
        attention: str = "full",
        first_alone: bool = False,
        revises: bool = False,
    ):
        self.config = config
        self.max_new_tokens = config.max_new_tokens
        self.is_infilling = config.is_infilling
        self.revises = revises
        self.width_multiple = width_multiple
        self.attention = attention
        self.whole_blocks = attention != "full" and config.block_origin == "sequence"
        self.first_alone = first_alone
        # Whether every pass predicts masks of blocks that are not open yet.
        is_cut_off = config.suffix_length is not None or config.cache_implementation == "dual"
        self.predicts_ahead = attention == "full" and not is_cut_off
        # Whether the one transfer of each pass also brings the tokens to the host.
        self.reads_tokens = False
        # By row, its random state. Without one, a row draws from torch's global state.
        self.generators: dict[int, torch.Generator] = {}
        self._widest = 0
        self.row_ids: list[int] = []
        self.prompt_lengths: list[int] = []
        self.row_nfe: list[int] = []
        self.status: list[RowStatus] = []
        # The tensors of the parts, one line per row.
        self.states: list[RowState] = []
        self._set_width()

    def __len__(self) -> int:
        return len(self.row_ids)

    def row_generators(self) -> list[torch.Generator] | None:
        """Returns the random state of each row, or `None` for torch's global one."""
        return [self.generators[row_id] for row_id in self.row_ids] if self.generators else None

    def prompt_start(self, row: int) -> int:
        """Returns the column of a row's first token, after the padding."""
        return self.width - self._length(self.prompt_lengths[row])

    def answer_start(self, row: int) -> int:
        """Returns the column of the first new token; when infilling, of the first token."""
        return self.prompt_start(row) + (0 if self.is_infilling else self.prompt_lengths[row])

    def answer_length(self, row: int) -> int:
        """Returns the number of new tokens; when infilling, of all tokens."""
        return self.prompt_lengths[row] if self.is_infilling else self.max_new_tokens

    def answer(self, row: int) -> slice:
        """Returns the columns of the answer."""
        start = self.answer_start(row)
        return slice(start, start + self.answer_length(row))

    def open_edges(self, row: int) -> tuple[int, int]:
        """Returns the columns at which the open blocks of a row begin and end."""
        first, status = self.prompt_start(row), self.status[row]
        start, end = (self._block_start(row, block) for block in (status.open_from, status.open_to + 1))
        return first + max(start, 0), min(first + end, self.width)

    def add(self, row_ids: list[int], input_ids: torch.LongTensor, attention_mask: torch.LongTensor) -> None:
        """Adds rows: left-padded prompts and their attention mask, both `(rows, prompt_length)`."""
        prompt_lengths = attention_mask.sum(dim=1, keepdim=True)
        sequences, attention_mask = self._with_masks(input_ids, attention_mask)
        # Positions count from the first token of the row, whatever the padding.
        position_ids = (attention_mask.cumsum(dim=1) - 1).clamp(min=0)
        from_answer = position_ids - self._first_position(prompt_lengths)
        block = from_answer.div(self.config.block_length, rounding_mode="floor").masked_fill(attention_mask == 0, -1)
        place = position_ids - (0 if self.is_infilling else prompt_lengths)
        place = place.masked_fill((attention_mask == 0) | (place < 0), _BEYOND)
        masked = place < _BEYOND
        if self.is_infilling:
            masked &= sequences == self.config.mask_token_id
        first_block = _first(block, ~masked)
        added = {
            "sequences": sequences,
            "attention_mask": attention_mask,
            "position_ids": position_ids,
            "block": block,
            "block_start": (position_ids - from_answer % self.config.block_length).clamp(min=0),
            "place": place,
            "masked": masked,
            "settled": ~masked,
            "open_from": first_block,
            "open_to": first_block,
        }
        is_empty = not self.row_ids
        self.row_ids += row_ids
        self.prompt_lengths += prompt_lengths[:, 0].tolist()
        self.row_nfe += [0] * len(row_ids)
        self._set_width()
        for owner, name, fill, is_wide in self._row_tensors():
            tensor = added.get(name)
            if tensor is None:
                dtype = torch.float32 if isinstance(fill, float) else None
                tensor = torch.full_like(sequences if is_wide else first_block, fill, dtype=dtype)
            parts = [tensor] if is_empty else [getattr(owner, name), tensor]
            setattr(owner, name, torch.cat([self._fitted(part, fill) for part in parts]))
        self.column_ids = torch.arange(self.width, device=sequences.device)
        if is_empty:
            self._eos_token_ids = sequences.new_tensor(self.config.eos_token_ids)
        self._read_status(None)

    def begin(self, row: int, tokens: list[int]) -> None:
        """Writes the first tokens of the answer of a newly added row."""
        self.write(row, 0, tokens)
        first_block = _first(self.block, self.settled)
        self.open_from[row] = self.open_to[row] = first_block[row]
        self._read_status(None)

    def write(self, row: int, place: int, tokens: list[int]) -> None:
        """Writes given tokens over the masks from a place of the answer on, up to the end of the answer."""
        answer = self.answer(row)
        start = answer.start + place
        columns = slice(start, min(start + len(tokens), answer.stop))
        self.sequences[row, columns] = self.sequences.new_tensor(tokens)[: columns.stop - start]
        self.masked[row, columns], self.settled[row, columns] = False, True
        self.commit_step[row, columns] = self.row_nfe[row]

    def mask_blocks(self) -> torch.LongTensor:
        """Returns the block of each column for a mask, `(rows, width)` ([`~attention_masks.mask_blocks`])."""
        is_past = self.block < self.open_from[:, None]
        return mask_blocks(self.attention, self.position_ids, self.block_start, is_past)

    def new_columns(self) -> torch.LongTensor:
        """Returns columns of the new tokens (all when infilling), `(rows, columns)`, if rows end with the answer."""
        first = 0 if self.is_infilling else self.width - self.max_new_tokens
        return self.column_ids[first:].expand(len(self), -1)

    def open_columns(self) -> tuple[torch.LongTensor, torch.BoolTensor]:
        """Returns the columns that a pass may decide, masks of the open blocks first, and which of them are masks.

        Both are `(rows, columns)`. Rows with fewer such columns are filled up with other columns.
        """
        num_columns = max(status.num_open + status.num_revisable for status in self.status)
        rank = self.is_open.view(torch.uint8)
        if self.revises:
            rank = self.revisable.view(torch.uint8).add(rank, alpha=2)
        columns = rank.argsort(dim=1, descending=True, stable=True)[:, :num_columns]
        return columns, self.is_open.gather(1, columns)

    def commit(
        self,
        columns: torch.LongTensor,
        tokens: torch.LongTensor,
        accepted: torch.BoolTensor,
        unsettled: torch.BoolTensor | None = None,
        taken_back: torch.BoolTensor | None = None,
    ) -> None:
        """Writes the accepted tokens of a pass and counts the pass; all arguments are `(rows, columns)`.

        Accepting a token at a decided column revises the old one; if it is also `taken_back`, it is masked again.
        `unsettled` tokens keep their row in its block, though they are decided.
        """
        is_new = torch.zeros_like(self.masked).scatter_(1, columns, accepted)
        self.sequences = torch.where(is_new, self.sequences.scatter(1, columns, tokens), self.sequences)
        self.commit_step = torch.where(is_new, self.nfe[:, None], self.commit_step)
        if self.revises:
            is_revised = is_new.gt(self.masked)  # new, and was no mask
            self.num_revisions += is_revised.sum(dim=1)
            if taken_back is None:
                self.masked = self.masked.masked_fill(is_new, False)
            else:
                is_taken_back = torch.zeros_like(self.masked).scatter_(1, columns, taken_back)
                self.masked = torch.where(is_new, is_taken_back, self.masked)
                self.sequences = self.sequences.masked_fill(is_taken_back, self.config.mask_token_id)
            self.commit_step = self.commit_step.masked_fill(self.masked, -1)
        else:
            self.masked = self.masked ^ is_new
        self.settled = ~self.masked
        if unsettled is not None:
            if self.first_alone:
                unsettled = unsettled & ~self.is_first.gather(1, columns)
            self.settled = ~(self.masked | torch.zeros_like(self.masked).scatter_(1, columns, unsettled))
        self.nfe += 1
        self.step_in_block += 1
        self.row_nfe = [nfe + 1 for nfe in self.row_nfe]

    def advance(self, num_nan: torch.LongTensor) -> None:
        """Moves each row whose block is decided to the next block, opens further blocks, and updates `status`.

        Finishes rows for which the model predicted NaN: `num_nan` counts these tokens by row, `(rows,)`.
        """
        first_block = _first(self.block, self.settled)
        self.step_in_block *= first_block == self.open_from
        self.open_from = first_block
        if self.config.max_active_blocks == 1:
            self.open_to = first_block
        else:
            self.open_to = torch.maximum(self.open_to, first_block)
            self._open_next_block()
        self._read_status(num_nan)

    def end_row(self, row: int, length: int, error: Exception | None = None) -> None:
        """Ends an answer after `length` tokens, whatever follows."""
        status = self.status[row]
        status.length, status.is_finished, status.error = length, True, error
        status.num_final = max(status.num_decided, length)

    def keep_row(self, row: int) -> None:
        """Lets an answer go on, whatever end tokens it has."""
        status = self.status[row]
        status.is_finished, status.length, status.length_to_eos = False, status.longest, status.longest

    def count_passes(self, row: int, number: int) -> None:
        """Counts further passes for a row."""
        self.row_nfe[row] += number
        self.nfe[row] += number

    def pop_finished(self) -> list[DecodedRow]:
        """Removes the finished rows and returns their results."""
        finished = [row for row, status in enumerate(self.status) if status.is_finished]
        results = [self._result(row) for row in finished]
        if finished:
            self._keep([row for row, status in enumerate(self.status) if not status.is_finished])
        return results

    def progress(self, num_known: Mapping[int, int]) -> dict[int, RowProgress]:
        """Returns, by row id, the final tokens of a row after the first `num_known` ones, and its passes so far."""
        progress = {}
        for row_id, status, nfe in zip(self.row_ids, self.status, self.row_nfe, strict=True):
            count = min(status.num_final, status.length_to_eos)
            progress[row_id] = RowProgress(status.answer[num_known.get(row_id, 0) : count].tolist(), nfe)
        return progress

    def remove(self, row_ids: Collection[int]) -> None:
        """Removes rows that are not finished."""
        if row_ids:
            self._keep([row for row, row_id in enumerate(self.row_ids) if row_id not in row_ids])

    def _length(self, prompt_length: int) -> int:
        """Returns the number of columns of a row with a prompt of this length."""
        length = prompt_length + self.max_new_tokens
        return length + (-length % self.config.block_length if self.whole_blocks else 0)

    def _block_start(self, row: int, block: int) -> int:
        """Returns the position at which a block begins, below 0 if the row lacks the start of the block."""
        return self._first_position(self.prompt_lengths[row]) + block * self.config.block_length

    def _first_position(self, prompt_length):
        """Returns the position at which the first block with new tokens begins, for one length or a tensor of them.

        When infilling, blocks end where the prompt ends, and the first one may be shorter.
        """
        block_length = self.config.block_length
        if self.whole_blocks:
            return prompt_length // block_length * block_length
        return -(-prompt_length % block_length) if self.is_infilling else prompt_length

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
        has_room = self.open_to - self.open_from < self.config.max_active_blocks - 1
        # No block follows the last one.
        self.open_to += is_decided & has_room & (self.open_to < self.block[:, -1])

    def _read_status(self, num_nan: torch.LongTensor | None) -> None:
        """Reads the status of all rows, in the only transfer of a pass from the device."""
        self._find_open()
        # The first column at which a row has a new token.
        first = min(map(self.answer_start, range(len(self))), default=0)
        counts = {
            "open_from": self.open_from,
            "open_to": self.open_to,
            "num_open": self.is_open.sum(dim=1),
            "num_decided": _first(self.place, self.settled),
        }
        # When infilling, an end token ends nothing.
        if not self.is_infilling:
            is_no_end = (self.sequences[:, first:, None] != self._eos_token_ids).all(dim=-1)
            counts["length_to_eos"] = _first(self.place[:, first:], is_no_end)
        if num_nan is not None:
            counts["is_nan"] = num_nan
        if self.revises:
            counts["num_revisable"] = self.revisable.sum(dim=1)
            counts["num_revisions"] = self.num_revisions
        numbers = torch.stack(list(counts.values()), dim=1)
        if self.reads_tokens:
            numbers = torch.cat([numbers, self.sequences[:, first:]], dim=1).cpu()
        rows = numbers[:, : len(counts)].tolist()
        self.status = [self._status(row, dict(zip(counts, of_row, strict=True))) for row, of_row in enumerate(rows)]
        for row, status in enumerate(self.status if self.reads_tokens else ()):
            status.answer = numbers[row, len(counts) + self.answer_start(row) - first :]

    def _status(self, row: int, counts: dict[str, Any]) -> RowStatus:
        if self.revises:
            before_answer = self.answer_start(row) - self.prompt_start(row)
            counts["first_open"] = max(self._block_start(row, counts["open_from"]) - before_answer, 0)
        return RowStatus(self.answer_length(row), self.config.stop_at_eos, **counts)

    def _find_open(self) -> None:
        if self.config.max_active_blocks == 1:
            is_within = self.block == self.open_from[:, None]
        else:
            is_within = (self.block >= self.open_from[:, None]) & (self.block <= self.open_to[:, None])
        self.is_open = self.masked & is_within
        if self.revises:
            self.revisable = is_within & (self.commit_step >= 0)
        if self.first_alone:
            self.is_first = (self.block == self.open_from[:, None]) & (self.position_ids == self.block_start)
            is_alone = (self.masked & self.is_first).any(dim=1, keepdim=True)
            self.is_open &= self.is_first | ~is_alone
            if self.revises:
                self.revisable &= ~(self.is_first | is_alone)

    def _result(self, row: int) -> DecodedRow:
        status, answer = self.status[row], self.answer(row)
        tokens, commit_step = self.sequences[row, answer].clone(), self.commit_step[row, answer].clone()
        tokens[status.length :] = self.config.padding_token_id
        commit_step[status.length :] = -1
        num_tokens = min(status.length, status.length_to_eos)
        if self.is_infilling:
            num_tokens = int((commit_step >= 0).sum())
        return DecodedRow(
            index=self.row_ids[row],
            tokens=tokens,
            commit_step=commit_step,
            nfe=self.row_nfe[row],
            num_tokens=num_tokens,
            num_revisions=status.num_revisions,
            is_nan=bool(status.is_nan),
            error=status.error,
        )

    def _keep(self, rows: list[int]) -> None:
        for name in ("row_ids", "prompt_lengths", "row_nfe", "status"):
            setattr(self, name, [getattr(self, name)[row] for row in rows])
        self._set_width()
        if rows:
            index = torch.tensor(rows, device=self.masked.device)
            for owner, name, fill, _ in self._row_tensors():
                setattr(owner, name, self._fitted(getattr(owner, name)[index], fill))
            self.column_ids = torch.arange(self.width, device=index.device)
            self._find_open()

    def _set_width(self) -> None:
        lengths = [self._length(prompt_length) for prompt_length in self.prompt_lengths]
        self.width = max(lengths, default=self.max_new_tokens)
        if self.width_multiple > 1:
            self.width = max(self._widest, -(-self.width // self.width_multiple) * self.width_multiple)
            self._widest = self.width
        self.is_padded = min(lengths, default=self.width) < self.width

    def _row_tensors(self) -> Iterator[tuple[Any, str, float, bool]]:
        """Yields the tensors with a line per row, as attributes of their owner, with their fill and `is_wide`."""
        for each in fields(RowTensors):
            fill = self.config.padding_token_id if each.name == "sequences" else each.metadata["fill"]
            yield self, each.name, fill, each.metadata["is_wide"]
        for state in self.states:
            yield state, "value", state.fill, state.is_wide

    def _fitted(self, tensor: torch.Tensor, fill: float) -> torch.Tensor:
        """Adds or removes padding on the left of a tensor with columns."""
        return pad(tensor, (self.width - tensor.shape[1], 0), value=fill) if tensor.dim() == 2 else tensor


def _first(values: torch.LongTensor, skipped: torch.BoolTensor) -> torch.LongTensor:
    """Returns the least of the `values` of each row outside the skipped columns, or `_BEYOND` if all are skipped."""
    return values.masked_fill(skipped, _BEYOND).amin(dim=1)
