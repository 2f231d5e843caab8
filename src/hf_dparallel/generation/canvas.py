# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The sequences being decoded: prompts, masks, and how far each row has come.

Rows never wait for one another. Each has its own current block and moves to the next one when that is decided; a
finished row leaves, and another may take its place. So a row meets the same states in a batch as alone.
"""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch.nn.functional import pad


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
        is_nan (`bool`): whether it is finished because the model predicted NaN.
    """

    index: int
    tokens: torch.LongTensor
    commit_step: torch.LongTensor
    nfe: int
    num_tokens: int
    is_nan: bool

    @property
    def tokens_per_forward(self) -> float:
        """Decoded tokens over forward passes."""
        return self.num_tokens / self.nfe if self.nfe else 0.0


@dataclass
class RowProgress:
    """What is known of a row on its way.

    Args:
        tokens (`list[int]`): the new tokens before the first masked one, up to and including the first end-of-sequence
            token.
        nfe (`int`): forward passes so far.
    """

    tokens: list[int]
    nfe: int


@dataclass
class RowStatus:
    """What the host knows of a row. Places are counted from the right edge, which no padding moves."""

    # The range of blocks whose masks may be decided, 0 being the last block of the canvas; -1 if all is decided.
    first_block: int
    last_block: int
    # How many masks there are in those blocks.
    num_open: int
    # Columns from the first mask on, columns after the end of the answer, columns after the first end token.
    undecided: int
    after_end: int
    after_eos: int
    nfe: int
    is_nan: bool
    is_finished: bool


class Canvas:
    """The rows being decoded: left-padded prompts with the mask tokens to decide.

    Tensors have one line a row and one column a token. Rows and their blocks are aligned on the right.

    Args:
        max_new_tokens (`int`): mask tokens that are appended to each prompt; 0 to decide the masks inside the prompts.
        block_length, max_active_blocks, block_add_threshold, stop_at_eos, mask_token_id, pad_token_id: as in
            [`DiffusionGenerationConfig`].
        eos_token_ids (`list[int]`): the tokens that end an answer.
        width_multiple (`int`): the width is a multiple of this, for code that is compiled for each width.
    """

    # (rows, width)
    sequences: torch.LongTensor
    attention_mask: torch.LongTensor
    position_ids: torch.LongTensor
    masked: torch.BoolTensor
    commit_step: torch.LongTensor
    # (rows,)
    nfe: torch.LongTensor
    step_in_block: torch.LongTensor
    first_block: torch.LongTensor
    last_block: torch.LongTensor

    _WIDE = ("sequences", "attention_mask", "position_ids", "masked", "commit_step")
    _NARROW = ("nfe", "step_in_block", "first_block", "last_block")

    def __init__(
        self,
        *,
        max_new_tokens: int,
        block_length: int,
        mask_token_id: int,
        pad_token_id: int,
        eos_token_ids: list[int],
        stop_at_eos: bool = True,
        max_active_blocks: int = 1,
        block_add_threshold: float = 1.0,
        width_multiple: int = 1,
    ):
        self.max_new_tokens = max_new_tokens
        self.block_length = block_length
        self.mask_token_id = mask_token_id
        self.pad_token_id = pad_token_id
        self.eos_token_ids = eos_token_ids
        self.stop_at_eos = stop_at_eos
        self.max_active_blocks = max_active_blocks
        self.block_add_threshold = block_add_threshold
        self.width_multiple = width_multiple
        self.row_ids: list[int] = []
        self.prompt_lengths: list[int] = []
        self.num_masks: list[int] = []
        self.status: list[RowStatus] = []

    def __len__(self) -> int:
        return len(self.row_ids)

    @property
    def width(self) -> int:
        """Number of columns: those of the longest prompt and of the new tokens, and padding."""
        return self._rounded(max(self.prompt_lengths, default=0) + self.max_new_tokens)

    @property
    def is_padded(self) -> bool:
        """Whether a row has padding."""
        return min(self.prompt_lengths) + self.max_new_tokens < self.width

    def add(self, row_ids: list[int], input_ids: torch.LongTensor, attention_mask: torch.LongTensor) -> None:
        """Adds rows: left-padded prompts and their attention mask, both `(rows, prompt_length)`."""
        new = input_ids.new_full((len(input_ids), self.max_new_tokens), self.mask_token_id)
        attention_mask = torch.cat([attention_mask, torch.ones_like(new)], dim=1)
        sequences = torch.cat([input_ids, new], dim=1)
        masked = (sequences == self.mask_token_id) & attention_mask.bool()
        first_block = self._first_block(masked)
        added = {
            "sequences": sequences,
            "attention_mask": attention_mask,
            # Positions count from the first token of the row, whatever the padding.
            "position_ids": (attention_mask.cumsum(dim=1) - 1).clamp(min=0),
            "masked": masked,
            "commit_step": torch.full_like(sequences, -1),
            "nfe": torch.zeros_like(first_block),
            "step_in_block": torch.zeros_like(first_block),
            "first_block": first_block,
            "last_block": first_block,
        }
        previous = {name: getattr(self, name) for name in added} if self.row_ids else {}
        lengths, num_masks = torch.stack([attention_mask.sum(dim=1), masked.sum(dim=1)]).tolist()
        self.row_ids += row_ids
        self.prompt_lengths += [length - self.max_new_tokens for length in lengths]
        self.num_masks += num_masks
        for name, tensor in added.items():
            parts = [previous[name], tensor] if previous else [tensor]
            setattr(self, name, torch.cat([self._fitted(name, part) for part in parts]))
        self._read_status(torch.zeros_like(self.nfe, dtype=torch.bool))

    def new_columns(self) -> torch.LongTensor:
        """The columns of the new tokens (when infilling, all), `(rows, columns)`."""
        first = self.width - self.max_new_tokens if self.max_new_tokens else 0
        return torch.arange(first, self.width, device=self.masked.device).expand(len(self), -1)

    def open_columns(self) -> tuple[torch.LongTensor, torch.BoolTensor]:
        """The columns that may be decided in this pass: the masks of each row's open blocks.

        Returns:
            `tuple`: the columns and which of them are meant, both `(rows, columns)`. A row that has fewer of them than
            another is filled up with others.
        """
        is_open = self._is_open()
        num_columns = max(status.num_open for status in self.status)
        columns = is_open.int().argsort(dim=1, descending=True, stable=True)[:, :num_columns]
        return columns, is_open.gather(1, columns)

    def commit(self, columns: torch.LongTensor, tokens: torch.LongTensor, accepted: torch.BoolTensor) -> None:
        """Writes the accepted tokens of a pass and counts the pass; all arguments are `(rows, columns)`."""
        for tensor, value in (
            (self.sequences, tokens),
            (self.commit_step, self.nfe[:, None]),
            (self.masked, torch.zeros_like(accepted)),
        ):
            tensor.scatter_(1, columns, torch.where(accepted, value, tensor.gather(1, columns)))
        self.nfe += 1
        self.step_in_block += 1

    def advance(self, is_nan: torch.BoolTensor) -> None:
        """Moves each row whose block is decided to its next one, opens further blocks, and informs the host.

        Args:
            is_nan (`torch.BoolTensor` of shape `(rows,)`): the rows for which the model predicted NaN.
        """
        first_block = self._first_block(self.masked)
        self.step_in_block *= first_block == self.first_block
        self.first_block = first_block
        self.last_block = torch.minimum(self.last_block, first_block)
        if self.max_active_blocks > 1:
            self._open_next_block()
        self._read_status(is_nan)

    def take_finished(self) -> list[FinishedRow]:
        """Removes the finished rows and returns what was decoded in them."""
        finished = [row for row, status in enumerate(self.status) if status.is_finished]
        results = [self._result(row) for row in finished]
        if finished:
            self._keep([row for row, status in enumerate(self.status) if not status.is_finished])
        return results

    def progress(self) -> dict[int, RowProgress]:
        """How far each row has come, by its number."""
        new_tokens = self.sequences[:, self.width - self.max_new_tokens :].tolist() if self.row_ids else []
        return {
            row_id: RowProgress(tokens[: len(tokens) - max(status.undecided, status.after_eos)], status.nfe)
            for row_id, tokens, status in zip(self.row_ids, new_tokens, self.status, strict=True)
        }

    def remove(self, row_ids: Collection[int]) -> None:
        """Removes rows that are not finished."""
        self._keep([row for row, row_id in enumerate(self.row_ids) if row_id not in row_ids])

    def _rounded(self, width: int) -> int:
        return -(-width // self.width_multiple) * self.width_multiple

    def _block(self) -> torch.LongTensor:
        """The block of each column, `(width,)`, counted from the right."""
        columns = torch.arange(self.masked.shape[1] - 1, -1, -1, device=self.masked.device)
        return columns // self.block_length

    def _first_block(self, masked: torch.BoolTensor) -> torch.LongTensor:
        # -1 // block_length is -1: no mask, no block.
        return (_columns_left(masked) - 1).div(self.block_length, rounding_mode="floor")

    def _is_open(self) -> torch.BoolTensor:
        block = self._block()
        return self.masked & (block <= self.first_block[:, None]) & (block >= self.last_block[:, None])

    def _open_next_block(self) -> None:
        """Opens one more block in the rows whose last open block is decided to the given fraction."""
        in_last = self._block() == self.last_block[:, None]
        num_masked = (self.masked & in_last).sum(dim=1)
        is_decided = num_masked <= (1 - self.block_add_threshold) * self.block_length
        has_room = self.first_block - self.last_block + 1 < self.max_active_blocks
        self.last_block -= (is_decided & has_room & (self.last_block > 0)).long()

    def _read_status(self, is_nan: torch.BoolTensor) -> None:
        """The one transfer from the device in each pass."""
        undecided = _columns_left(self.masked)
        is_eos = torch.isin(self.sequences, self.sequences.new_tensor(self.eos_token_ids)) & ~self.masked
        is_eos[:, : self.width - self.max_new_tokens] = False
        after_eos = (_columns_left(is_eos) - 1).clamp(min=0)
        after_end = after_eos if self.stop_at_eos else torch.zeros_like(after_eos)
        has_ended = undecided <= after_end
        fields = [
            self.first_block,
            self.last_block,
            self._is_open().sum(dim=1),
            undecided,
            after_end,
            after_eos,
            self.nfe,
            is_nan,
            has_ended | is_nan,
        ]
        counts = torch.stack([field.long() for field in fields], dim=1).tolist()
        self.status = [RowStatus(*row[:-2], *map(bool, row[-2:])) for row in counts]

    def _result(self, row: int) -> FinishedRow:
        length = self.max_new_tokens or self.prompt_lengths[row]
        status = self.status[row]
        tokens, commit_step = self.sequences[row, -length:].clone(), self.commit_step[row, -length:].clone()
        tokens[length - status.after_end :] = self.pad_token_id
        commit_step[length - status.after_end :] = -1
        num_tokens = self.num_masks[row] - max(status.after_end, status.after_eos)
        return FinishedRow(self.row_ids[row], tokens, commit_step, status.nfe, num_tokens, status.is_nan)

    def _keep(self, rows: list[int]) -> None:
        for name in ("row_ids", "prompt_lengths", "num_masks", "status"):
            setattr(self, name, [getattr(self, name)[row] for row in rows])
        if rows:
            index = torch.tensor(rows, device=self.masked.device)
            for name in (*self._WIDE, *self._NARROW):
                setattr(self, name, self._fitted(name, getattr(self, name)[index]))

    def _fitted(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Adds or removes padding on the left."""
        if name in self._NARROW:
            return tensor
        value = {"sequences": self.pad_token_id, "commit_step": -1}.get(name, 0)
        return pad(tensor, (self.width - tensor.shape[1], 0), value=value)


def _columns_left(marked: torch.BoolTensor) -> torch.LongTensor:
    """Columns from the first marked one of each row to the right edge, 0 if none is marked."""
    columns_left = torch.arange(marked.shape[1], 0, -1, device=marked.device)
    return (marked * columns_left).amax(dim=1)
