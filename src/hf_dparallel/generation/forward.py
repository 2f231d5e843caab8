# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The forward pass of decoding: which part of the canvas is computed, and which is remembered."""

import weakref
from collections.abc import Collection
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask

from ..attention_masks import block_causal, make_attention_mask
from .cache import Window, WindowCache
from .canvas import Canvas
from .compatibility import check
from .mixture import mix_embeddings
from .shadow import Shadow, make_shadow


class CanvasForward:
    """Computes every position of the canvas in every pass, and the head where it is asked to.

    Args:
        model ([`~transformers.PreTrainedModel`]): with [`~DiffusionGenerationMixin.generate`].
        canvas ([`Canvas`]): the rows being decoded. Its configuration says whether the model is compiled.
    """

    def __init__(self, model: PreTrainedModel, canvas: Canvas):
        self.model = model
        self.canvas = canvas
        self.suffix_length = canvas.config.suffix_length
        self.verifies = bool(canvas.config.revocation_threshold)
        self.is_soft = canvas.config.is_on("soft_threshold")
        self.compile_config = canvas.config.compile_config if canvas.config.compiles else None
        self._mask_key: tuple | None = None
        self._masks: dict[int, torch.Tensor | None] = {}
        self._most_rows = 1

    @property
    def num_rows(self) -> int:
        """Rows that a pass computes: for compiled code the most there have been, up to a power of two.

        The last row is repeated. Code is compiled for each number of rows, so it does not fall when rows leave.
        """
        rows = len(self.canvas)
        if self.compile_config is None:
            return rows
        self._most_rows = max(self._most_rows, 1 << (rows - 1).bit_length())
        return self._most_rows

    def logits(self, columns: torch.LongTensor) -> torch.Tensor:
        """Scores of the tokens at `columns` (`(rows, columns)`) of each row, `(rows, columns, vocab_size)`."""
        end = max(self.ends())
        input_ids, position_ids = self.canvas.sequences[:, :end], self.canvas.position_ids[:, :end]
        shadow = self.make_shadow(end)
        if shadow is None:
            mask, weights = self.attention_mask(end, num_keys=end), self.weights(None, slice(end))
            return self.run_model(input_ids, position_ids, mask, columns, weights=weights)
        input_ids, position_ids, scored = shadow.appended(input_ids, position_ids, columns, columns)
        return self.run_model(input_ids, position_ids, shadow.make_mask(self.model, end), scored)

    def ends(self) -> list[int]:
        """The column behind the last one that each row computes and sees."""
        canvas = self.canvas
        if self.suffix_length is None:
            return [canvas.width] * len(canvas)
        return [min(canvas.open_edges(row)[1] + self.suffix_length, canvas.width) for row in range(len(canvas))]

    def key_mask(self, num_keys: int) -> torch.LongTensor:
        """1 for each of the first columns that is seen, `(rows, num_keys)`."""
        canvas, columns = self.canvas, torch.arange(num_keys, device=self.canvas.sequences.device)
        mask = canvas.attention_mask[:, :num_keys]
        if self.suffix_length is None:
            return mask
        open_end = (canvas.block <= canvas.open_to[:, None]).sum(dim=1, keepdim=True)
        return mask * (columns < open_end + self.suffix_length)

    def make_shadow(self, num_keys: int) -> Shadow | None:
        """What is to be computed beside the first columns in this pass, if decided tokens are verified."""
        if not self.verifies:
            return None
        return make_shadow(self.canvas, int(self.model.shift_logits), self.key_mask(num_keys))

    def weights(self, rows: torch.LongTensor | None, columns: torch.LongTensor | slice) -> torch.FloatTensor | None:
        """How much of the mixture of some columns is the token, if decided tokens are mixed with the mask token."""
        if not self.is_soft:
            return None
        weights = self.canvas.confidence.masked_fill(~self.canvas.revisable, 1)
        weights = weights if rows is None else weights[rows]
        return weights[:, columns] if isinstance(columns, slice) else weights.gather(1, columns)

    def run_model(
        self,
        input_ids: torch.LongTensor,
        position_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None,
        scored: torch.LongTensor,
        cache: WindowCache | None = None,
        weights: torch.FloatTensor | None = None,
    ) -> torch.Tensor:
        """Runs the model, with the head at the places `scored` of `input_ids`, compiled or as it is."""
        inputs = {"input_ids": input_ids, "position_ids": position_ids}
        if weights is not None:
            embeddings = self.model.get_input_embeddings()
            del inputs["input_ids"]
            inputs["inputs_embeds"] = mix_embeddings(embeddings, input_ids, weights, self.canvas.config.mask_token_id)
        caching = {} if cache is None else {"past_key_values": cache}
        if self.compile_config is None:
            return self.model.score({**inputs, "attention_mask": attention_mask, **caching}, scored)
        rows, num_scored = scored.shape
        # As many places as there can be, so that there is one shape to compile.
        missing = -num_scored % self.canvas.config.block_length
        torch.compiler.cudagraph_mark_step_begin()
        inputs = {name: self.repeated(tensor) for name, tensor in inputs.items()}
        logits = self.model.score(
            {**inputs, "attention_mask": attention_mask, **caching},
            self.repeated(pad(scored, (0, missing))),
            forward=self.model.get_compiled_call(self.compile_config),
        )
        return logits[:rows, :num_scored]

    def repeated(self, tensor: torch.Tensor) -> torch.Tensor:
        """Repeats the last row up to `num_rows`."""
        index = torch.arange(self.num_rows, device=tensor.device).clamp(max=len(tensor) - 1)
        return tensor[index]

    def attention_mask(
        self, query_length: int, rows: torch.LongTensor | None = None, num_keys: int | None = None
    ) -> torch.Tensor | None:
        """The mask of all or some rows, for models of this package in the form that their attention takes.

        transformers would make it anew in every pass, and wait for the device to see whether it masks anything.
        """
        canvas = self.canvas
        if self.suffix_length is not None and min(self.ends()) < canvas.width:
            return self._suffix_mask(query_length, rows, canvas.width if num_keys is None else num_keys)
        if self.compile_config is None and not canvas.is_padded and not canvas.whole_blocks:
            return None
        if not self.model._supports_window_cache:
            return canvas.attention_mask
        if self._mask_key != (canvas.row_ids, canvas.width):
            self._mask_key = (list(canvas.row_ids), canvas.width)
            self._masks = {}
        if query_length not in self._masks:
            if canvas.whole_blocks:
                self._masks[query_length] = self.block_mask(canvas.position_ids, canvas.width)
            else:
                self._masks[query_length] = self._make_mask(query_length, self.repeated(canvas.attention_mask))
        mask = self._masks[query_length]
        if rows is None or mask is None:
            return mask
        # A block mask of flex attention cannot be cut.
        return mask[rows] if torch.is_tensor(mask) else self._make_mask(query_length, canvas.attention_mask[rows])

    def _suffix_mask(self, query_length: int, rows: torch.LongTensor | None, num_keys: int) -> torch.Tensor | None:
        """The mask of a pass in which rows do not see the whole canvas; it changes with their open blocks."""
        if not self.canvas.is_padded and min(self.ends()) == num_keys:
            return None
        mask = self.key_mask(num_keys)
        mask = mask if rows is None else mask[rows]
        return self._make_mask(query_length, mask) if self.model._supports_window_cache else mask

    def _make_mask(self, query_length: int, attention_mask: torch.LongTensor) -> torch.Tensor | None:
        device = attention_mask.device
        return create_bidirectional_mask(
            self.model.config.get_text_config(),
            torch.empty(len(attention_mask), query_length, 0, dtype=self.model.dtype, device=device),
            attention_mask,
            # It does mask something, or compiled code has to meet a mask always.
            allow_is_bidirectional_skip=False,
        )

    def block_mask(
        self, position_ids: torch.LongTensor, num_keys: int, rows: torch.LongTensor | None = None
    ) -> torch.Tensor:
        """The block-causal mask of queries at `position_ids` (of all or some rows) and of the first columns."""
        canvas, block_length = self.canvas, self.canvas.config.block_length
        key_positions, key_mask = canvas.position_ids[:, :num_keys], canvas.attention_mask[:, :num_keys]
        if rows is not None:
            key_positions, key_mask = key_positions[rows], key_mask[rows]
        else:
            position_ids, key_positions, key_mask = map(self.repeated, (position_ids, key_positions, key_mask))
        return make_attention_mask(
            self.model.config.get_text_config(),
            block_causal(position_ids // block_length, key_positions // block_length),
            (*position_ids.shape, num_keys),
            key_mask=key_mask,
            dtype=self.model.dtype,
            device=position_ids.device,
        )


class CachedForward(CanvasForward):
    """Computes a part of the canvas, and remembers the rest in a cache that follows the rows of the canvas."""

    def __init__(self, model: PreTrainedModel, canvas: Canvas):
        super().__init__(model, canvas)
        self.cache = WindowCache(model.config.get_text_config().num_hidden_layers)
        if self.compile_config is not None:
            self.cache = _borrow_cache(self)
        self._cached_rows: list[int] = []

    def fit_cache(self) -> None:
        """Follows the rows that have left the canvas and those that were added."""
        canvas = self.canvas
        if (self._cached_rows, *self.cache.shape) != (canvas.row_ids, self.num_rows, canvas.width):
            place = {row_id: row for row, row_id in enumerate(self._cached_rows)}
            kept = [place[row_id] for row_id in canvas.row_ids if row_id in place]
            self.cache.resize(kept, self.num_rows, canvas.width, canvas.sequences.device)
        self._cached_rows = list(canvas.row_ids)


class WindowForward(CachedForward):
    """Computes the whole canvas where a row enters a block, and in between only the window of its open blocks.

    The window is the open blocks ("dual"), or takes in all that follows them ("prefix").
    """

    def __init__(self, model: PreTrainedModel, canvas: Canvas):
        super().__init__(model, canvas)
        self.suffix_is_cached = canvas.config.cache_implementation == "dual"
        self.refresh_interval = canvas.config.cache_refresh_interval
        self._shadow: Shadow | None = None
        # By row: its open blocks when it was last computed as a whole, and the passes since then.
        self._refreshed: dict[int, tuple[int, int, int]] = {}

    def logits(self, columns: torch.LongTensor) -> torch.Tensor:
        """Scores of the tokens at `columns`, which are in the open blocks."""
        self.fit_cache()
        self._refreshed = {row_id: last for row_id, last in self._refreshed.items() if row_id in self.canvas.row_ids}
        self._shadow = self.make_shadow(self.canvas.width)
        due = [row for row in range(len(self.canvas)) if self._count_pass(row)]
        others = [row for row in range(len(self.canvas)) if row not in set(due)]
        ends = self.ends()
        whole = torch.arange(max(ends), device=columns.device).expand(len(self.canvas), -1)
        if not others:
            return self._run(None, columns, whole, None)
        if self.compile_config is not None:
            return self._run_compiled(columns, whole, due)
        order, window, writable = self._plan(due, others)
        if not due:
            return self._run(None, columns, window, writable)
        first, second = order[: len(due)], order[len(due) :]
        parts = [
            self._run(first, columns[first], whole[: len(due)], None),
            self._run(second, columns[second], window, writable),
        ]
        logits = torch.cat(parts)
        return torch.empty_like(logits).index_copy_(0, order, logits)

    def _run_compiled(self, columns: torch.LongTensor, whole: torch.LongTensor, due: list[int]) -> torch.Tensor:
        """As if only some rows were computed as a whole, in the shapes that are compiled already."""
        _, window, writable = self._plan([], list(range(len(self.canvas))), due)
        if not due:
            return self._run(None, columns, window, writable)
        # A row that is due may replace nothing in its window.
        is_due = ~writable.any(dim=1, keepdim=True)
        of_due = self._run(None, columns, whole, is_due.expand_as(whole)).clone()
        of_others = self._run(None, columns, window, writable)
        return torch.where(is_due[..., None], of_due, of_others)

    def _count_pass(self, row: int) -> bool:
        """Whether the row has to be computed as a whole in this pass."""
        row_id, status = self.canvas.row_ids[row], self.canvas.status[row]
        blocks = (status.open_from, status.open_to)
        *previous, passes = self._refreshed.get(row_id, (None, None, 0))
        is_due = tuple(previous) != blocks or passes == self.refresh_interval
        self._refreshed[row_id] = (*blocks, 1 if is_due else passes + 1)
        return is_due

    def _plan(
        self, due: list[int], others: list[int], unwritable: Collection[int] = ()
    ) -> tuple[torch.LongTensor, torch.LongTensor, Any]:
        """The order of the rows in this pass, and of the others their windows, with one copy to the device.

        Returns:
            `tuple`: `due` and `others`; the columns to compute in each of `others`, as many in each; and which of them
            each row may replace (in compiled code always a mask, for one shape less).
        """
        canvas = self.canvas
        # A shifted model predicts a token one column earlier.
        lead = int(self.model.shift_logits)
        edges, ends = [], self.ends()
        for row in others:
            start, end = canvas.open_edges(row)
            edges.append((start, end if self.suffix_is_cached else ends[row]))
        size = max(end - max(start - lead, 0) for start, end in edges)
        if self.compile_config is not None:
            # A few lengths: 1, 2, 4, ... blocks.
            num_blocks = -(-(size - lead) // canvas.config.block_length)
            size = min(canvas.config.block_length * (1 << (num_blocks - 1).bit_length()) + lead, canvas.width)
        firsts = [min(max(start - lead, 0), canvas.width - size) for start, _ in edges]
        is_exact = (
            all((first, first + size) == edge for first, edge in zip(firsts, edges, strict=True))
            and self.compile_config is None
        )
        edges = [(0, 0) if row in unwritable else edge for row, edge in zip(others, edges, strict=True)]
        device = canvas.sequences.device
        plan = torch.tensor([*due, *others, *firsts, *(start for start, _ in edges), *(end for _, end in edges)])
        order, first, start, end = plan.to(device).split([len(due) + len(others), *[len(others)] * 3])
        window = first[:, None] + torch.arange(size, device=device)
        writable = None if is_exact else (window >= start[:, None]) & (window < end[:, None])
        return order, window, writable

    def _run(
        self,
        rows: torch.LongTensor | None,
        columns: torch.LongTensor,
        window: torch.LongTensor,
        writable: torch.BoolTensor | None,
    ) -> torch.Tensor:
        """Computes `window` of the rows and returns the scores at `columns`."""
        canvas = self.canvas
        sequences, position_ids = canvas.sequences, canvas.position_ids
        if rows is not None:
            sequences, position_ids = sequences[rows], position_ids[rows]
        input_ids, position_ids = sequences.gather(1, window), position_ids.gather(1, window)
        # Columns that only fill up a row may lie outside.
        scored = (columns - window[:, :1]).clamp(0, window.shape[1] - 1)
        num_passing = 0
        if self._shadow is None:
            mask = self.attention_mask(window.shape[1], rows)
        else:
            shadow = self._shadow.of_rows(rows)
            mask, num_passing = shadow.make_mask(self.model, window.shape[1]), shadow.columns.shape[1]
            input_ids, position_ids, scored = shadow.appended(input_ids, position_ids, columns, scored)
        if self.compile_config is None:
            self.cache.select(Window(rows, window, writable, num_passing))
        else:
            writable = torch.ones_like(window, dtype=torch.bool) if writable is None else writable
            self.cache.select(Window(None, self.repeated(window), self.repeated(writable)))
        weights = self.weights(rows, window)
        return self.run_model(input_ids, position_ids, mask, scored, self.cache, weights)


class BlockForward(CachedForward):
    """Computes the open blocks of a block-causal model, and remembers all that precedes them. This is exact.

    A block is stored when its row has left it, together with the first pass over the next block, and the prompt with
    the first pass of all: storing takes no pass of its own. To compute more than is needed changes nothing, for no
    column sees a later block.
    """

    def __init__(self, model: PreTrainedModel, canvas: Canvas):
        super().__init__(model, canvas)
        # By row, how many columns at its right end are not stored yet.
        self._missing: dict[int, int] = {}
        self._shared: tuple[Any, torch.Tensor | dict] = (None, {})

    def logits(self, columns: torch.LongTensor) -> torch.Tensor:
        """Scores of the tokens at `columns`, which are in the open blocks."""
        self.fit_cache()
        canvas = self.canvas
        entering = [row for row, row_id in enumerate(canvas.row_ids) if row_id not in self._missing]
        others = [row for row, row_id in enumerate(canvas.row_ids) if row_id in self._missing]
        if entering and others and self.compile_config is None:
            order = torch.tensor(entering + others).to(columns.device)
            first, second = order[: len(entering)], order[len(entering) :]
            parts = [self._run(entering, first, columns[first]), self._run(others, second, columns[second])]
            logits = torch.empty_like(torch.cat(parts)).index_copy_(0, order, torch.cat(parts))
        else:
            logits = self._run(list(range(len(canvas))), None, columns)
        self._missing = {row_id: canvas.width - canvas.open_edges(row)[0] for row, row_id in enumerate(canvas.row_ids)}
        return logits

    def _run(self, rows: list[int], index: torch.LongTensor | None, columns: torch.LongTensor) -> torch.Tensor:
        """Computes what is missing of some rows, which `index` picks, up to their open blocks."""
        canvas = self.canvas
        ends = [canvas.open_edges(row)[1] for row in rows]
        starts = [canvas.width - self._missing.get(canvas.row_ids[row], canvas.length(row)) for row in rows]
        size = max(end - start for start, end in zip(starts, ends, strict=True))
        sequences, position_ids = canvas.sequences, canvas.position_ids
        if index is not None:
            sequences, position_ids = sequences[index], position_ids[index]
        shared = slice(min(starts), max(ends))
        if self.compile_config is None and shared.stop - shared.start < 2 * size:
            self.cache.select(Window(index, shared, num_keys=shared.stop))
            mask = self._shared_mask(rows, index, shared, position_ids[:, shared])
            scored = (columns - shared.start).clamp(0, shared.stop - shared.start - 1)
            input_ids, position_ids = sequences[:, shared], position_ids[:, shared]
            weights = self.weights(index, shared)
            return self.run_model(input_ids, position_ids, mask, scored, self.cache, weights)
        num_keys = max(ends)
        if self.compile_config is not None:
            # A few lengths: 1, 2, 4, ... blocks.
            num_blocks = -(-size // canvas.config.block_length)
            size = min(canvas.config.block_length * (1 << (num_blocks - 1).bit_length()), canvas.width)
            num_keys = canvas.width
        first = torch.tensor([[max(end - size, 0)] for end in ends]).to(columns.device)
        window = first + torch.arange(size, device=columns.device)
        self.cache.select(Window(index, self.repeated(window) if index is None else window, num_keys=num_keys))
        position_ids = position_ids.gather(1, window)
        mask = self.block_mask(position_ids, num_keys, index)
        scored = (columns - first).clamp(0, size - 1)
        input_ids, weights = sequences.gather(1, window), self.weights(index, window)
        return self.run_model(input_ids, position_ids, mask, scored, self.cache, weights)

    def _shared_mask(
        self, rows: list[int], index: torch.LongTensor | None, window: slice, position_ids: torch.LongTensor
    ) -> torch.Tensor | dict:
        """The mask of a window that all `rows` share, which is kept for the next pass."""
        canvas = self.canvas
        key = ([canvas.row_ids[row] for row in rows], canvas.width, window)
        if self._shared[0] != key:
            is_padded = max(map(canvas.prompt_start, rows)) > 0
            if not is_padded and window.stop - window.start <= canvas.config.block_length:
                # The last block sees everything.
                mask: torch.Tensor | dict = {"full_attention": None}
            else:
                mask = self.block_mask(position_ids, window.stop, index)
            self._shared = (key, mask)
        return self._shared[1]


# Keys and values for compiled code, which a CUDA graph expects where they were: by model, those that are not in use.
_CACHES: weakref.WeakKeyDictionary[PreTrainedModel, list[WindowCache]] = weakref.WeakKeyDictionary()


def _borrow_cache(forward: CachedForward) -> WindowCache:
    """A cache of the model that nobody uses, until `forward` is no more."""
    model = forward.model
    free = _CACHES.setdefault(model, [])
    cache = free.pop() if free else forward.cache
    if not cache.layers[0].is_initialized:
        cache.allocate(model.config.get_text_config(), model.dtype, model.device)
    weakref.finalize(forward, free.append, cache)
    return cache


def make_forward(model: PreTrainedModel, canvas: Canvas) -> CanvasForward:
    """The forward pass that the settings ask for.

    Raises:
        ValueError: if the model cannot do what the settings ask for.
    """
    check(canvas.config, model)
    forwards = {None: CanvasForward, "block": BlockForward, "prefix": WindowForward, "dual": WindowForward}
    return forwards[canvas.config.cache_implementation](model, canvas)
