# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Dynamic batching: one thread decodes the prompts of all requests together, in a fixed number of slots.

A prompt enters a free slot between two passes, and leaves when its answer has ended or its client has disconnected.
Prompts with the same settings and adapter share passes; groups take turns. The other prompts in a batch do not
change an answer.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.utils import logging

from hf_dparallel_rules.settings import SETTINGS

from ..generation.compatibility import set_adapter
from ..generation.configuration import DiffusionGenerationConfig
from ..generation.decoded_row import DecodedRow, RowProgress
from ..generation.decoder import Decoder
from ..generation.standard_parts import make_parts
from .bodies import RequestError
from .followers import Follower, Progress, RowFollowers


logger = logging.get_logger(__name__)


@dataclass(eq=False)
class Prompt:
    """A prompt to decode. `input_ids`, `(prompt_length,)`, are checked, and on the device of the model."""

    input_ids: torch.LongTensor
    # Resolved, special tokens included.
    config: DiffusionGenerationConfig
    max_tokens: int
    seed: int
    # Called in the decoding thread with the progress of each pass. It must not block or raise.
    listener: Callable[[Progress], None]
    adapter: str | None = None
    followers: list[Follower] = field(default_factory=list)
    # The tokens that are passed to the listener.
    sent: list[int] = field(default_factory=list, init=False)
    settings: tuple[Any, ...] = field(init=False)

    def __post_init__(self):
        self.settings = (self.adapter, *_settings_of_a_pass(self.config))


@dataclass
class _Group:
    """The prompts that share passes: their decoder, their adapter, and the rows that enter before the next pass."""

    decoder: Decoder
    adapter: str | None
    entering: dict[int, torch.LongTensor] = field(default_factory=dict)

    @property
    def row_ids(self) -> list[int]:
        return [*self.decoder.canvas.row_ids, *self.entering]


class Engine:
    """Decodes up to `num_slots` prompts together, in its own thread. Up to `max_waiting` prompts wait for a slot."""

    def __init__(self, model: PreTrainedModel, num_slots: int, max_waiting: int):
        self.model = model
        self.num_slots = num_slots if model.hides_padding else 1
        self.max_waiting = max_waiting
        # The error that ended the decoding thread.
        self.failure: Exception | None = None
        # Counted since the start.
        self.num_prompts = self.num_passes = self.num_tokens = 0
        self._waiting: deque[Prompt] = deque()
        self._active: dict[int, Prompt] = {}
        self._given_up: set[Prompt] = set()
        # By settings, ordered by their last pass.
        self._groups: dict[tuple[Any, ...], _Group] = {}
        self._next_row = 0
        self._is_closed = False
        # Guards what other threads write: the waiting prompts, the ones given up, and `_is_closed`.
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="hf-dparallel-decoding", daemon=True)
        self._thread.start()

    @property
    def num_active(self) -> int:
        """Number of prompts that are being decoded."""
        return len(self._active)

    @property
    def num_waiting(self) -> int:
        """Number of prompts that wait for a slot."""
        return len(self._waiting)

    @property
    def capacity(self) -> int:
        """Largest number of prompts, decoded and waiting ones together."""
        return self.num_slots + self.max_waiting

    @property
    def is_alive(self) -> bool:
        """Tells whether the engine accepts and decodes prompts."""
        return self._thread.is_alive() and not self._is_closed

    def submit(self, prompts: list[Prompt]) -> None:
        """Accepts all prompts, or raises a [`RequestError`] if too many would wait, or after `stop`."""
        with self._changed:
            if not self.is_alive:
                raise RequestError("The server is shutting down.", status=503)
            # There may be free slots that the decoding thread has not filled yet.
            if self.num_active + self.num_waiting + len(prompts) > self.capacity:
                raise RequestError(
                    f"The server is busy: {self.num_active} prompts are being decoded, and {self.num_waiting} of at "
                    f"most {self.max_waiting} wait. Try again later.",
                    status=429,
                    code="overloaded",
                    headers={"Retry-After": "1"},
                )
            self._waiting.extend(prompts)
            self.num_prompts += len(prompts)
            self._changed.notify()

    def give_up(self, prompts: list[Prompt]) -> None:
        """Stops decoding these prompts, and frees their slots. Ignores finished prompts."""
        with self._changed:
            self._given_up.update(prompts)
            self._changed.notify()

    def stop(self) -> None:
        """Stops the decoding thread after the current pass. Unfinished prompts end with an error."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def close(self) -> None:
        """Stops the decoding thread, and waits until it has ended."""
        self.stop()
        self._thread.join()

    @torch.no_grad()
    def _run(self) -> None:
        try:
            while self._take_changes():
                if self._groups:
                    self._run_pass(self._choose_group())
        except Exception as error:
            self.failure = error
            logger.error("The decoding thread has failed. The server stops.", exc_info=True)
        # Otherwise their clients would wait forever.
        with self._changed:
            self._is_closed = True
            left = [*self._active.values(), *self._waiting]
        for prompt in left:
            prompt.listener(Progress([], 0, error=RequestError("The server is shutting down.", status=503)))

    def _take_changes(self) -> bool:
        """Waits until there is something to decode, and fills the free slots. Returns `False` after `stop`."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._active or self._waiting)
            if self._is_closed:
                return False
            given_up, self._given_up = self._given_up, set()
            self._waiting = deque(prompt for prompt in self._waiting if prompt not in given_up)
            self._leave([row_id for row_id, prompt in self._active.items() if prompt in given_up])
            while self._waiting and self.num_active < self.num_slots:
                self._enter(self._waiting.popleft())
        return True

    def _enter(self, prompt: Prompt) -> None:
        row_id, self._next_row = self._next_row, self._next_row + 1
        self._active[row_id] = prompt
        try:
            if prompt.settings not in self._groups:
                parts = [*make_parts(prompt.config), RowFollowers(self._followers_of)]
                decoder = Decoder(self.model, prompt.config, parts, self._generator_for)
                decoder.canvas.reads_tokens = True
                self._groups[prompt.settings] = _Group(decoder, prompt.adapter)
            self._groups[prompt.settings].entering[row_id] = prompt.input_ids
        except Exception as error:
            logger.error("A prompt cannot be decoded.", exc_info=True)
            self._fail([row_id], error)

    def _leave(self, row_ids: list[int]) -> None:
        """Frees the slots of rows. Drops groups without rows, together with their caches."""
        for row_id in row_ids:
            del self._active[row_id]
        for settings, group in list(self._groups.items()):
            group.entering = {row_id: ids for row_id, ids in group.entering.items() if row_id not in row_ids}
            # Finished rows have already left the decoder. Removing rows copies all others.
            unfinished = set(row_ids).intersection(group.decoder.canvas.row_ids)
            if unfinished:
                group.decoder.remove(unfinished)
            if not group.row_ids:
                del self._groups[settings]

    def _choose_group(self) -> _Group:
        """Returns the group that has waited longest, and moves it to the end of the order."""
        settings = next(iter(self._groups))
        group = self._groups[settings] = self._groups.pop(settings)
        return group

    def _run_pass(self, group: _Group) -> None:
        row_ids = group.row_ids
        try:
            set_adapter(self.model, group.adapter)
            if group.entering:
                group.decoder.add_prompts(group.entering)
                group.entering = {}
            finished = {row.index: row for row in group.decoder.step()}
            num_sent = {row_id: len(self._active[row_id].sent) for row_id in row_ids}
            progress = group.decoder.canvas.progress(num_sent)
        except Exception as error:
            # Requests with other settings go on, whatever the error is.
            logger.error("A pass failed; the requests in it end with an error.", exc_info=True)
            del self._groups[self._active[row_ids[0]].settings]
            self._fail(row_ids, error)
            return
        self.num_passes += 1
        for row_id, row in finished.items():
            # An infilling is sent whole, with the given tokens between the masks.
            end = None if self._active[row_id].config.is_infilling else row.num_tokens
            progress[row_id] = RowProgress(row.tokens[num_sent[row_id] : end].tolist(), row.nfe)
        self._leave([row_id for row_id in row_ids if self._tell(row_id, progress[row_id], finished.get(row_id))])

    def _fail(self, row_ids: list[int], error: Exception) -> None:
        for row_id in row_ids:
            self._active.pop(row_id).listener(Progress([], nfe=0, error=error))

    def _tell(self, row_id: int, new: RowProgress, finished: DecodedRow | None) -> bool:
        """Sends the new tokens of a row to its listener. Returns whether they are the last."""
        prompt = self._active[row_id]
        num_sent, tokens = len(prompt.sent), (prompt.sent + new.tokens)[: prompt.max_tokens]
        is_last = finished is not None or len(tokens) == prompt.max_tokens
        progress = Progress(tokens[num_sent:], nfe=new.nfe, error=finished.error if finished else None)
        if is_last and progress.error is None:
            ends = tokens and tokens[-1] in prompt.config.eos_token_ids and not prompt.config.is_infilling
            progress.finish_reason = "stop" if ends else "length"
        try:
            for follower in prompt.followers:
                follower.tell(progress, num_sent, len(tokens))
        except Exception as error:
            logger.error("A follower of a prompt failed; the prompt ends with an error.", exc_info=True)
            progress.error = error
        if progress.tokens or progress.draft is not None or progress.is_last:
            self.num_tokens += len(progress.tokens)
            prompt.sent = tokens
            prompt.listener(progress)
        return progress.is_last

    def _followers_of(self, row_id: int) -> list[Follower]:
        # A prompt that was given up has already left.
        return self._active[row_id].followers if row_id in self._active else []

    def _generator_for(self, row_id: int) -> torch.Generator:
        return torch.Generator(self.model.device).manual_seed(self._active[row_id].seed)


def _settings_of_a_pass(config: DiffusionGenerationConfig) -> tuple[Any, ...]:
    """Returns the settings that prompts must have in common to share passes: all that change a pass.

    Settings that a request cannot have are the same for all prompts.
    """
    idle = ("top_k", "top_p") if config.temperature == 0 else ()
    return tuple(
        (name, value)
        for name, value in config.settings().items()
        if SETTINGS[name].has_flag and value != SETTINGS[name].default and name not in idle
    )
