# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The sequences being decoded: prompts, masks, and how far each row has come.

Rows never wait for one another. Each has its own open block and moves to the next one when that is decided; a
finished row leaves, and another may take its place. So a row meets the same states in a batch as alone.

A token is *decided* when it is no mask. It is *pending* as long as it keeps its row in its block: a mask, or a decided
token that a hook may still change. It is *final* when its row has left its block, after which nothing changes it. Its
*column* is its index in the tensors of the canvas, padding included, which changes when rows of other lengths enter
and leave.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from ..attention_masks import attention_blocks
from .configuration import DiffusionGenerationConfig
from .layout import Layout
from .output import DecodedRow


# Compiled passes have widths that are multiples of this.
_WIDTH_BUCKET = 64


@dataclass
class RowStatus:
    """The state of a row, on the host. Tokens are those of the answer; when infilling, all."""

    # The passes it took part in.
    nfe: int
    # The first and the last open block, the masks in them that may be decided, and the tokens that may be revised.
    open_from: int
    open_to: int
    num_open: int
    num_revisable: int
    num_revisions: int
    # The tokens before the first pending one, and before the first one that may still change.
    num_decided: int
    num_final: int
    # The tokens up to and including the first end token, all without one; and those that the row is decoded to.
    length_to_eos: int
    length: int
    is_finished: bool
    is_nan: bool
    # The tokens, on the host.
    answer: torch.LongTensor

    def final_tokens(self, first: int) -> list[int]:
        """Returns the final tokens from number `first` on, up to and including the first end token."""
        last = min(self.num_final, self.length_to_eos)
        return self.answer[first:last].tolist()


@dataclass(eq=False)
class HookTensor:
    """A tensor of a hook, `(rows, width)` or `(rows,)`, whose lines the canvas adds and removes with the rows."""

    fill: float
    value: torch.Tensor


class Canvas:
    """The rows being decoded: left-padded prompts with the mask tokens to decide.

    Tensors have a line per row and a column per token, and rows end at the same column. With `revises`, decided tokens
    of the open blocks may change.

    With `predicts_next_block`, the column before a block predicts the first token of the block. This token is decided
    alone, whatever its probability, as soon as its row enters the block, and never revised, as in the samplers of
    these models (Fast-dLLM v2, https://huggingface.co/papers/2509.26328). Of several open blocks this is for the
    first only.

    Compiled passes need few shapes (`is_static`): the width is a multiple of 64 and never shrinks, and tensors have a
    power of two of lines. Those after the rows are padding.
    """

    # `(rows, width)`: the masks.
    masked: torch.BoolTensor
    # Masks of the open blocks that may be committed, and (only if a hook revises) decided tokens that may change.
    is_open: torch.BoolTensor
    revisable: torch.BoolTensor
    # With `predicts_next_block`: the first column of the first open block.
    is_block_start: torch.BoolTensor

    # 0, 1, ..., `(width,)`.
    column_ids: torch.LongTensor
    # The first column of any answer, or before it.
    first_new: int
    # Whether a row has padding.
    is_padded: bool

    def __init__(
        self,
        config: DiffusionGenerationConfig,
        attention: str = "full",
        predicts_next_block: bool = False,
        revises: bool = False,
        layout: Layout | None = None,
    ):
        self.config = config
        self.attention = attention
        self.layout = layout or Layout.of(config, attention)
        self.predicts_next_block = predicts_next_block
        self.revises = revises
        self.is_static = config.compile_config is not None
        # The most columns that a pass may decide in a row.
        self.max_open = config.block_length * config.max_active_blocks
        self.width = 0
        self.row_ids: list[int] = []
        self.prompt_lengths: list[int] = []
        self.status: list[RowStatus] = []
        self._of_hooks: list[HookTensor] = []

        # `(rows, width)`: token ids, filled up with the padding token of the configuration.
        self.sequences = torch.zeros(0, 0, dtype=torch.long)
        # The pass that committed a token, -1 for none.
        self.commit_step = self.sequences
        # Pending tokens: all masks, and decided tokens that keep their row in its block.
        self.pending = torch.zeros(0, 0, dtype=torch.bool)
        # `(rows,)`: passes, passes since the first open block was entered, and the first and last open block.
        no_rows = torch.zeros(0, dtype=torch.long)
        self.nfe = no_rows
        self.step_in_block = no_rows
        self.open_from = no_rows
        self.open_to = no_rows
        self.num_revisions = no_rows

    def __len__(self) -> int:
        return len(self.row_ids)

    def row_tensor(self, fill: float, is_wide: bool = True) -> HookTensor:
        """Returns a tensor for a hook to keep, `fill` in padding and new rows; call it before any row enters."""
        shape = (0, 0) if is_wide else (0,)
        tensor = HookTensor(fill=fill, value=torch.full(shape, fill))
        self._of_hooks.append(tensor)
        return tensor

    def prompt_start(self, row: int) -> int:
        """Returns the column of a row's first token, after the padding."""
        return self.width - self.layout.length(self.prompt_lengths[row])

    def answer(self, row: int) -> slice:
        """Returns the columns of the answer; when infilling, of all tokens."""
        start = self.prompt_start(row)
        answer = self.layout.answer(self.prompt_lengths[row])
        return slice(start + answer.start, start + answer.stop)

    def open_edges(self, row: int) -> tuple[int, int]:
        """Returns the columns at which the open blocks of a row begin and end."""
        status = self.status[row]
        return self._block_column(row, status.open_from), self._block_column(row, status.open_to + 1)

    def add(self, prompts: Mapping[int, torch.LongTensor]) -> None:
        """Adds prompts of any lengths, `(prompt_length,)` each, by row ids that are not in use."""
        num_rows = len(self)
        device = next(iter(prompts.values())).device
        self.row_ids += prompts
        self.prompt_lengths += map(len, prompts.values())
        self._resize(slice(num_rows), device)

        for row, prompt in enumerate(prompts.values(), num_rows):
            start = self.prompt_start(row)
            self.sequences[row, start:] = self.config.mask_token_id
            self.sequences[row, start : start + len(prompt)] = prompt
        self.masked = self.sequences == self.config.mask_token_id
        self.pending = self.pending | self.masked
        if not num_rows:
            # On the device of the prompts.
            self._eos_token_ids = self.sequences.new_tensor(self.config.eos_token_ids)
        self._enter()

    def begin(self, row: int, tokens: list[int]) -> None:
        """Writes the first tokens of the answer of a newly added row."""
        self.write(row, 0, tokens)
        self._enter()

    def _enter(self) -> None:
        """Has new rows enter their first block with masks. Others stay where they are."""
        self.open_from = _first_where(self.block, self.pending)
        self.open_to = torch.maximum(self.open_to, self.open_from)
        self._measure(torch.zeros_like(self.nfe))
        self.read_status()

    def write(self, row: int, number: int, tokens: list[int]) -> None:
        """Writes given tokens over the masks from token `number` of the answer on, up to its end."""
        answer = self.answer(row)
        start = answer.start + number
        stop = min(start + len(tokens), answer.stop)
        self.sequences[row, start:stop] = self.sequences.new_tensor(tokens)[: stop - start]
        self.masked[row, start:stop] = False
        self.pending[row, start:stop] = False
        self.commit_step[row, start:stop] = self.status[row].nfe

    def input_ids(self) -> torch.LongTensor:
        """Returns the token ids that a pass reads, `(rows, width)`. Exact decoding has drafts among them."""
        return self.sequences

    def positions(self) -> torch.LongTensor:
        """Returns the position that a pass gives each column, `(rows, width)`."""
        return self.position_ids

    def is_mask(self) -> torch.BoolTensor:
        """Returns whether a pass reads a mask at each column, `(rows, width)`."""
        return self.masked

    def mask_blocks(self) -> torch.LongTensor:
        """Returns the block that attention has each column in, `(rows, width)` ([`attention_blocks`])."""
        is_past = self.block < self.open_from[:, None]
        return attention_blocks(self.attention, self.position_ids, self.block_start, is_past)

    def open_columns(self) -> tuple[torch.LongTensor, torch.BoolTensor]:
        """Returns the columns that a pass may decide, masks first, and which are masks, both `(rows, columns)`.

        Rows with fewer such columns are filled up with other columns.
        """
        if self.is_static:
            num_columns = min(self.max_open, self.width)
        else:
            num_columns = max(status.num_open + status.num_revisable for status in self.status)

        # 2 for masks and 1 for tokens that may be revised, so that sorting moves them to the left in this order.
        rank = 2 * self.is_open.byte()
        if self.revises:
            rank = rank + self.revisable
        columns = rank.argsort(dim=1, descending=True, stable=True)[:, :num_columns]
        return columns, self.is_open.gather(1, columns)

    def commit(
        self,
        columns: torch.LongTensor,
        tokens: torch.LongTensor,
        commits: torch.BoolTensor,
        pending: torch.BoolTensor | None = None,
    ) -> None:
        """Writes the tokens that a pass commits and counts the pass; all arguments are `(rows, columns)`.

        Committing a token at a decided column revises the old one; committing the mask token masks it again.
        `pending` tokens keep their row in its block, though they are decided.
        """
        is_new = torch.zeros_like(self.masked).scatter_(1, columns, commits)
        self.sequences = torch.where(is_new, self.sequences.scatter(1, columns, tokens), self.sequences)
        self.commit_step = torch.where(is_new, self.nfe[:, None], self.commit_step)
        masked = self.sequences == self.config.mask_token_id
        if self.revises:
            self.num_revisions = self.num_revisions + (is_new & ~self.masked).sum(dim=1)
            self.commit_step = self.commit_step.masked_fill(masked, -1)

        self.masked = masked
        self.pending = masked
        if pending is not None:
            is_pending = torch.zeros_like(masked).scatter_(1, columns, pending)
            if self.predicts_next_block:
                # The first token of a block is not revised once the block is the first open one.
                is_pending &= self.position_ids != self.block_start
            self.pending = masked | is_pending

        self.nfe = self.nfe + 1
        self.step_in_block = self.step_in_block + 1

    def advance(self, num_nan: torch.LongTensor) -> None:
        """Moves each row whose block is decided to the next block, and opens further blocks.

        `num_nan` is the number of NaN predictions of each row. [`read_status`] has to follow.
        """
        first_block = _first_where(self.block, self.pending)
        has_moved = first_block != self.open_from
        self.step_in_block = self.step_in_block.masked_fill(has_moved, 0)
        self.open_to = self._last_open(first_block)
        self.open_from = first_block
        self._measure(num_nan)

    def end_row(self, row: int, length: int) -> None:
        """Ends an answer after `length` tokens, whatever follows."""
        status = self.status[row]
        status.length = length
        status.is_finished = True
        status.num_final = max(status.num_decided, length)

    def pop_finished(self) -> list[DecodedRow]:
        """Removes the finished rows and returns their results."""
        finished = [row for row, status in enumerate(self.status) if status.is_finished]
        if not finished:
            return []

        results = [self._result(row) for row in finished]
        self._keep([row for row in range(len(self)) if row not in finished])
        return results

    def remove(self, row_ids: Collection[int]) -> None:
        """Removes rows that are not finished."""
        if row_ids:
            self._keep([row for row, row_id in enumerate(self.row_ids) if row_id not in row_ids])

    def _block_column(self, row: int, block: int) -> int:
        """Returns the first column of a block of a row, or the width if there is no such block."""
        start = self.prompt_start(row)
        origin = self.layout.origin(self.prompt_lengths[row])
        # When infilling, the first block may begin left of the row.
        position = max(origin + block * self.layout.block_length, 0)
        return min(start + position, self.width)

    def _last_open(self, first: torch.LongTensor) -> torch.LongTensor:
        """Returns the last open block of each row, `first` being the first open one, `(rows,)`.

        One more block opens where the last open one is decided to the given fraction.
        """
        if self.config.max_active_blocks == 1:
            # Not the same tensor: compiled code tells the two cases apart.
            return first.clone()

        last = torch.maximum(self.open_to, first)
        in_last = self.block == last[:, None]
        num_masked = (self.masked & in_last).sum(dim=1)
        # A block may be shorter than the others: the last one, and when infilling the first one.
        is_decided = num_masked <= (1 - self.config.block_add_threshold) * in_last.sum(dim=1)
        has_room = last - first < self.config.max_active_blocks - 1
        # No block follows the last one.
        return last + (is_decided & has_room & (last < self.block[:, -1]))

    def _find_open(self) -> None:
        """Finds the columns of the open blocks that may be committed or revised."""
        is_within = (self.block >= self.open_from[:, None]) & (self.block <= self.open_to[:, None])
        self.is_open = self.masked & is_within
        if self.revises:
            self.revisable = is_within & (self.commit_step >= 0)

        if self.predicts_next_block:
            self.is_block_start = (self.block == self.open_from[:, None]) & (self.position_ids == self.block_start)
            # As long as the first token is masked, it is all that a pass decides.
            first_is_masked = (self.masked & self.is_block_start).any(dim=1, keepdim=True)
            self.is_open &= self.is_block_start | ~first_is_masked
            if self.revises:
                self.revisable &= ~self.is_block_start & ~first_is_masked

    def _measure(self, num_nan: torch.LongTensor) -> None:
        """Finds what is open, and the table that [`read_status`] reads."""
        self._find_open()
        first = self.first_new
        is_end = (self.sequences[:, first:, None] == self._eos_token_ids).any(dim=-1)
        if self.layout.whole_blocks or self.is_static:
            # Otherwise all answers begin at the same column.
            is_end &= ~self.is_given[:, first:]

        numbers = {
            "nfe": self.nfe,
            "open_from": self.open_from,
            "open_to": self.open_to,
            "num_revisions": self.num_revisions,
            "first_pending": _first_where(self.column_ids, self.pending),
            "first_end": _first_where(self.column_ids[first:], is_end),
            "num_open": self.is_open.sum(dim=1),
            "num_revisable": self.revisable.sum(dim=1) if self.revises else torch.zeros_like(self.nfe),
            "num_nan": num_nan,
        }
        by_row = torch.stack(list(numbers.values()), dim=1)
        self.table = torch.cat([by_row, self.sequences[:, first:]], dim=1)
        self._names = list(numbers)

    def own(self) -> None:
        """Copies what a pass has changed, which compiled code may overwrite."""
        self.sequences = self.sequences.clone()
        self.commit_step = self.commit_step.clone()
        self.masked = self.masked.clone()
        self.pending = self.pending.clone()
        self.is_open = self.is_open.clone()
        self.nfe = self.nfe.clone()
        self.step_in_block = self.step_in_block.clone()
        self.open_from = self.open_from.clone()
        self.open_to = self.open_to.clone()
        if self.predicts_next_block:
            self.is_block_start = self.is_block_start.clone()

    def read_status(self) -> None:
        """Reads the status of all rows, in the only transfer of a pass from the device. Ends rows that are decided."""
        on_host = self.table[: len(self)].cpu()
        numbers_on_host = on_host[:, : len(self._names)].tolist()
        tokens_on_host = on_host[:, len(self._names) :]
        rows = []
        for row, numbers_of_row in enumerate(numbers_on_host):
            answer = tokens_on_host[row, self.answer(row).start - self.first_new :]
            named = dict(zip(self._names, numbers_of_row, strict=True))
            rows.append(self._status(row, answer, **named))
        self.status = rows

    def _status(
        self, row: int, answer: torch.LongTensor, *, first_pending: int, first_end: int, num_nan: int, **counts: int
    ) -> RowStatus:
        """Returns the status of a row, from its counts and the columns of its first pending and first end token."""
        columns = self.answer(row)
        longest = columns.stop - columns.start
        num_decided = min(first_pending - columns.start, longest)

        # When infilling, an end token ends nothing.
        length_to_eos = longest if self.config.is_infilling else min(first_end + 1 - columns.start, longest)
        length = length_to_eos if self.config.stop_at_eos else longest
        is_finished = num_nan > 0 or num_decided >= length

        num_final = num_decided
        if self.revises and not is_finished:
            first_open = self._block_column(row, counts["open_from"])
            num_final = min(num_decided, max(first_open - columns.start, 0))

        return RowStatus(
            **counts,
            num_decided=num_decided,
            num_final=num_final,
            length_to_eos=length_to_eos,
            length=length,
            is_finished=is_finished,
            is_nan=num_nan > 0,
            answer=answer,
        )

    def _result(self, row: int) -> DecodedRow:
        status = self.status[row]
        answer = self.answer(row)
        tokens = self.sequences[row, answer].clone()
        commit_step = self.commit_step[row, answer].clone()
        tokens[status.length :] = self.config.padding_token_id
        commit_step[status.length :] = -1

        num_tokens = min(status.length, status.length_to_eos)
        if self.config.is_infilling:
            num_tokens = int((commit_step >= 0).sum())

        error = None
        if status.is_nan:
            error = FloatingPointError(
                f"The logits are NaN at step {status.nfe - 1} of row {self.row_ids[row]}. Check the weights, the "
                "processors and the dtype: float16 overflows in models trained in bfloat16, load those in bfloat16."
            )
        return DecodedRow(
            index=self.row_ids[row],
            tokens=tokens,
            commit_step=commit_step,
            nfe=status.nfe,
            num_tokens=num_tokens,
            num_revisions=status.num_revisions,
            error=error,
        )

    def _keep(self, rows: list[int]) -> None:
        self.row_ids = [self.row_ids[row] for row in rows]
        self.prompt_lengths = [self.prompt_lengths[row] for row in rows]
        self.status = [self.status[row] for row in rows]
        if rows:
            device = self.masked.device
            self._resize(torch.tensor(rows, device=device), device)
            self.masked = self.sequences == self.config.mask_token_id
            self._find_open()

    def _resize(self, rows: slice | torch.LongTensor, device: torch.device) -> None:
        """Keeps `rows` of all tensors, appends those of new rows, and fits the left edge to the longest row."""
        lengths = [self.layout.length(prompt_length) for prompt_length in self.prompt_lengths]
        num_lines = len(lengths)
        longest = max(lengths)
        self.is_padded = min(lengths) < longest
        if self.is_static:
            num_lines = 1 << (num_lines - 1).bit_length()
            longest = max(self.width, -(-longest // _WIDTH_BUCKET) * _WIDTH_BUCKET)
            self.is_padded = True
        self.width = longest
        self.first_new = 0 if self.is_static else min(self.answer(row).start for row in range(len(self)))

        def fitted(tensor: torch.Tensor, fill: float) -> torch.Tensor:
            kept = tensor[rows].to(device)
            num_missing = num_lines - len(kept)
            if kept.dim() == 1:
                return pad(kept, (0, num_missing), value=fill)
            return pad(kept, (self.width - kept.shape[1], 0, 0, num_missing), value=fill)

        self.sequences = fitted(self.sequences, self.config.padding_token_id)
        self.commit_step = fitted(self.commit_step, -1)
        self.pending = fitted(self.pending, False)
        self.nfe = fitted(self.nfe, 0)
        self.step_in_block = fitted(self.step_in_block, 0)
        self.open_from = fitted(self.open_from, 0)
        self.open_to = fitted(self.open_to, -1)
        self.num_revisions = fitted(self.num_revisions, 0)
        for tensor in self._of_hooks:
            tensor.value = fitted(tensor.value, tensor.fill)

        self.column_ids = torch.arange(self.width, device=device)
        # Where tokens are changes only with the rows.
        num_more = num_lines - len(lengths)
        places = self.layout.place(self.prompt_lengths + self.prompt_lengths[:1] * num_more, self.column_ids)
        self.attention_mask = places.attention_mask
        self.position_ids = places.position_ids
        self.block = places.block
        self.block_start = places.block_start
        self.is_given = places.is_given


def _first_where(numbers: torch.LongTensor, where: torch.BoolTensor) -> torch.LongTensor:
    """Returns the least number of each row where `where` is true, or more than any if it is nowhere."""
    return numbers.masked_fill(~where, 2**31).amin(dim=1)
