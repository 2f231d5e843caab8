# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The forward pass of decoding: which part of the canvas is computed, and which is remembered."""

import torch
from torch.nn.functional import pad
from transformers import PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask

from .cache import Window, WindowCache
from .canvas import Canvas
from .configuration import DiffusionGenerationConfig


class CanvasForward:
    """Computes every position of the canvas in every pass, and the head where it is asked to.

    Args:
        model ([`~transformers.PreTrainedModel`]): with [`~DiffusionGenerationMixin.generate`].
        canvas ([`Canvas`]): the rows being decoded. Its configuration says whether the model is compiled.
    """

    def __init__(self, model: PreTrainedModel, canvas: Canvas):
        self.model = model
        self.canvas = canvas
        self.compile_config = canvas.config.compile_config if canvas.config.compiles else None
        self._mask_key: tuple | None = None
        self._masks: dict[int, torch.Tensor | None] = {}

    @property
    def num_rows(self) -> int:
        """Rows that a pass computes: for compiled code a power of two, the last row being repeated."""
        rows = len(self.canvas)
        return 1 << (rows - 1).bit_length() if self.compile_config is not None else rows

    def logits(self, columns: torch.LongTensor) -> torch.Tensor:
        """Scores of the tokens at `columns` (`(rows, columns)`) of each row, `(rows, columns, vocab_size)`."""
        canvas = self.canvas
        return self.run_model(canvas.sequences, canvas.position_ids, self.attention_mask(canvas.width), columns)

    def run_model(
        self,
        input_ids: torch.LongTensor,
        position_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None,
        scored: torch.LongTensor,
        cache: WindowCache | None = None,
    ) -> torch.Tensor:
        """Runs the model, with the head at the places `scored` of `input_ids`, compiled or as it is."""
        inputs = {"input_ids": input_ids, "position_ids": position_ids}
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

    def attention_mask(self, query_length: int, rows: torch.LongTensor | None = None) -> torch.Tensor | None:
        """The mask of all or some rows, for models of this package in the form that their attention takes.

        transformers would make it anew in every pass, and wait for the device to see whether it masks anything.
        """
        canvas = self.canvas
        if self.compile_config is None and not canvas.is_padded:
            return None
        if not self.model._supports_window_cache:
            return canvas.attention_mask
        if self._mask_key != (canvas.row_ids, canvas.width):
            self._mask_key = (list(canvas.row_ids), canvas.width)
            self._masks = {}
        if query_length not in self._masks:
            self._masks[query_length] = self._make_mask(query_length, self.repeated(canvas.attention_mask))
        mask = self._masks[query_length]
        if rows is None or mask is None:
            return mask
        # A block mask of flex attention cannot be cut.
        return mask[rows] if torch.is_tensor(mask) else self._make_mask(query_length, canvas.attention_mask[rows])

    def _make_mask(self, query_length: int, attention_mask: torch.LongTensor) -> torch.Tensor | None:
        device = attention_mask.device
        return create_bidirectional_mask(
            self.model.config.get_text_config(),
            torch.empty(len(attention_mask), query_length, 0, dtype=self.model.dtype, device=device),
            attention_mask,
            # It does mask something, or compiled code has to meet a mask always.
            allow_is_bidirectional_skip=False,
        )


class CachedForward(CanvasForward):
    """Computes the whole canvas where a row enters a block, and in between only the window of its open blocks.

    The window is the open blocks ("dual"), or takes in all that follows them ("prefix").
    """

    def __init__(self, model: PreTrainedModel, canvas: Canvas):
        super().__init__(model, canvas)
        self.suffix_is_cached = canvas.config.cache_implementation == "dual"
        self.refresh_interval = canvas.config.cache_refresh_interval
        config = model.config.get_text_config()
        self.cache = WindowCache(config.num_hidden_layers)
        if self.compile_config is not None:
            self.cache.allocate(config, model.dtype, model.device)
        self._cached_rows: list[int] = []
        # By row: its open blocks when it was last computed as a whole, and the passes since then.
        self._refreshed: dict[int, tuple[int, int, int]] = {}

    def logits(self, columns: torch.LongTensor) -> torch.Tensor:
        """Scores of the tokens at `columns`, which are in the open blocks."""
        self._fit_cache()
        due = [row for row in range(len(self.canvas)) if self._count_pass(row)]
        others = [row for row in range(len(self.canvas)) if row not in set(due)]
        if not others:
            return self._run(None, columns, *self._whole(len(due)))
        if not due:
            return self._run(None, columns, *self._window(others))
        if self.compile_config is not None:
            return self._run_both_on_all_rows(columns, due)
        parts = []
        for rows, window in ((due, self._whole(len(due))), (others, self._window(others))):
            index = torch.tensor(rows, device=columns.device)
            parts.append(self._run(index, columns[index], *window))
        order = torch.tensor(due + others, device=columns.device).argsort()
        return torch.cat(parts)[order]

    def _run_both_on_all_rows(self, columns: torch.LongTensor, due: list[int]) -> torch.Tensor:
        """As if only some rows were due, in the shapes that are compiled already."""
        all_rows = list(range(len(self.canvas)))
        is_due = torch.zeros(len(all_rows), 1, dtype=torch.bool, device=columns.device)
        is_due[torch.tensor(due, device=columns.device)] = True
        whole, _ = self._whole(len(all_rows))
        window, writable = self._window(all_rows)
        writable = ~is_due if writable is None else writable & ~is_due
        of_due = self._run(None, columns, whole, is_due.expand_as(whole)).clone()
        of_others = self._run(None, columns, window, writable.expand_as(window))
        return torch.where(is_due[..., None], of_due, of_others)

    def _fit_cache(self) -> None:
        """Follows the rows that have left the canvas and those that were added."""
        canvas = self.canvas
        if (self._cached_rows, *self.cache.shape) != (canvas.row_ids, self.num_rows, canvas.width):
            place = {row_id: row for row, row_id in enumerate(self._cached_rows)}
            kept = [place[row_id] for row_id in canvas.row_ids if row_id in place]
            self.cache.resize(kept, self.num_rows, canvas.width, canvas.sequences.device)
        self._cached_rows = list(canvas.row_ids)
        self._refreshed = {row_id: last for row_id, last in self._refreshed.items() if row_id in set(canvas.row_ids)}

    def _count_pass(self, row: int) -> bool:
        """Whether the row has to be computed as a whole in this pass."""
        row_id, status = self.canvas.row_ids[row], self.canvas.status[row]
        blocks = (status.open_from, status.open_to)
        *previous, passes = self._refreshed.get(row_id, (None, None, 0))
        is_due = tuple(previous) != blocks or passes == self.refresh_interval
        self._refreshed[row_id] = (*blocks, 1 if is_due else passes + 1)
        return is_due

    def _whole(self, num_rows: int) -> tuple[torch.LongTensor, None]:
        columns = torch.arange(self.canvas.width, device=self.canvas.sequences.device)
        return columns.expand(num_rows, -1), None

    def _window(self, rows: list[int]) -> tuple[torch.LongTensor, torch.BoolTensor | None]:
        """The columns to compute in these rows, as many in each, and which of them each row may replace."""
        canvas = self.canvas
        edges = [canvas.open_edges(row) for row in rows]
        starts = [start for start, _ in edges]
        ends = [end if self.suffix_is_cached else canvas.width for _, end in edges]
        # A shifted model predicts a token one column earlier.
        lead = int(self.model.shift_logits)
        firsts = [max(start - lead, 0) for start in starts]
        size = max(end - first for first, end in zip(firsts, ends, strict=True))
        firsts = [min(first, canvas.width - size) for first in firsts]
        device = canvas.sequences.device
        columns = torch.tensor(firsts, device=device)[:, None] + torch.arange(size, device=device)
        if all((first, first + size) == (start, end) for first, start, end in zip(firsts, starts, ends, strict=True)):
            return columns, None
        start, end = (torch.tensor(edge, device=device)[:, None] for edge in (starts, ends))
        return columns, (columns >= start) & (columns < end)

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
        mask = self.attention_mask(window.shape[1], rows)
        if rows is not None:
            sequences, position_ids = sequences[rows], position_ids[rows]
        if self.compile_config is None:
            self.cache.select(Window(rows, window, writable))
        else:
            writable = self.repeated(writable) if writable is not None else None
            self.cache.select(Window(None, self.repeated(window), writable))
        # Columns that only fill up a row may lie outside.
        scored = (columns - window[:, :1]).clamp(0, window.shape[1] - 1)
        return self.run_model(
            sequences.gather(1, window), position_ids.gather(1, window), mask, scored, cache=self.cache
        )


def check_supported(model: PreTrainedModel, config: DiffusionGenerationConfig) -> None:
    """Checks that the model can do what the settings ask for.

    Raises:
        ValueError: if a cache or compilation is asked for, and the model is not one of this package, or is trained
            with activation checkpointing.
    """
    if not model._supports_window_cache and (config.cache_implementation or config.compiles):
        name = "cache_implementation" if config.cache_implementation else "compile_config"
        raise ValueError(
            f"`{name}={getattr(config, name)!r}` needs a model of this package (LLaDA, Dream), and this is a "
            f"{type(model).__name__}. Leave it out."
        )
    if config.cache_implementation and model.training and model.is_activation_checkpointing:
        raise ValueError(
            f"`cache_implementation={config.cache_implementation!r}` needs `model.eval()`: in training, activation "
            "checkpointing (gradient checkpointing) drops the keys and values that are kept."
        )


def make_forward(model: PreTrainedModel, canvas: Canvas) -> CanvasForward:
    """The forward pass that the settings ask for.

    Raises:
        ValueError: if the model cannot do what the settings ask for.
    """
    check_supported(model, canvas.config)
    return CanvasForward(model, canvas) if canvas.config.cache_implementation is None else CachedForward(model, canvas)
