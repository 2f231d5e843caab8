# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Decodes many prompts in a fixed number of slots: a finished row's slot takes the next prompt at once."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import torch

from .decoder import Decoder
from .output import DecodedRow


class SlotDecoder(Iterator[DecodedRow]):
    """Iterator over the decoded prompts, in their order, returned by [`~DiffusionGenerationMixin.generate_many`].

    A prompt is read when a slot is free, so the prompts may be endless. A prompt that cannot be decoded raises its
    error at its turn, when all earlier ones have been returned; the next call goes on with the next prompt. After an
    interruption, `finished` still has the rows that were decoded and not yet returned.
    [`as_completed`] does not wait for earlier prompts.

    `check` gets a prompt of shape `(1, prompt_length)` and returns its tokens, on the device of the model.

    Attributes:
        finished (`dict[int, DecodedRow]`): by number of the prompt, the rows that wait for an earlier one.
    """

    def __init__(
        self,
        decoder: Decoder,
        prompts: Iterable[Sequence[int] | torch.Tensor],
        num_slots: int,
        check: Callable[[torch.Tensor], torch.LongTensor],
    ):
        self.finished: dict[int, DecodedRow | Exception] = {}
        self._decoder = decoder
        self._prompts = enumerate(prompts)
        self._num_slots = num_slots
        self._check = check
        self._next = 0

    def __next__(self) -> DecodedRow:
        while self._next not in self.finished:
            if not self._advance():
                raise StopIteration

        self._next += 1
        return self._take(self._next - 1)

    def as_completed(self, raise_errors: bool = True) -> Iterator[DecodedRow]:
        """Yields each row when it is finished; its `index` is the number of the prompt.

        A failure raises its error, and a new call goes on after it; with `raise_errors=False`, a row whose decoding
        failed is yielded with its `error` instead. Use this or the iterator itself, not both.
        """
        while self.finished or self._advance():
            while self.finished:
                yield self._take(next(iter(self.finished)), raise_errors)

    def _take(self, index: int, raise_errors: bool = True) -> DecodedRow:
        row = self.finished.pop(index)

        if isinstance(row, Exception):
            raise row
        if raise_errors and row.error is not None:
            raise row.error
        return row

    @torch.no_grad()
    def _advance(self) -> bool:
        """Fills the slots and runs a pass. Returns `False` if nothing was left to decode."""
        num_finished = len(self.finished)
        self._fill_slots()
        if self._decoder:
            for row in self._decoder.step():
                self.finished[row.index] = row
            return True

        # Prompts that cannot be decoded take no slot.
        return len(self.finished) > num_finished

    def _fill_slots(self) -> None:
        prompts: dict[int, torch.LongTensor] = {}
        try:
            while len(self._decoder) + len(prompts) < self._num_slots:
                index, prompt = next(self._prompts, (None, None))
                if index is None:
                    return
                try:
                    prompts[index] = self._check(_as_batch(prompt))
                except (ValueError, TypeError, RuntimeError) as error:
                    self.finished[index] = ValueError(f"Prompt {index}: {error}")
        finally:
            # In one call, and even if reading the next prompt was interrupted.
            if prompts:
                self._decoder.add_prompts(prompts)


def _as_batch(prompt: Sequence[int] | torch.Tensor) -> torch.Tensor:
    with suppress(TypeError, RuntimeError):
        ids = torch.as_tensor(prompt)
        if ids.ndim == 1:
            return ids[None]
    raise ValueError(f"a prompt must be a list of token ids, got {prompt!r}.")
