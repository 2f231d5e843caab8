# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Dynamic batching: one thread decodes the prompts of all requests together, in a fixed number of slots.

A prompt enters a free slot between two passes, whenever it comes, and leaves when its answer has ended or nobody wants
it any more. Prompts with the same settings and adapter share passes; groups take turns, and so do clients.
A prompt gives the tokens that it gives alone.
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
    """A prompt to be answered: `(prompt_length,)`, checked, on the device of the model."""

    input_ids: torch.LongTensor
    # Every setting, special tokens included.
    config: DiffusionGenerationConfig
    # The answer ends after so many tokens at the latest.
    max_tokens: int
    seed: int
    # Called in the decoding thread with what each pass brings. It must not block or raise.
    listener: Callable[[Progress], None]
    # Who asks. Clients take turns, however many different settings each of them sends.
    client: str = ""
    # The adapter that is active in its passes.
    adapter: str | None = None
    followers: list[Follower] = field(default_factory=list)
    # The tokens of the answer that the listener has got.
    sent: list[int] = field(default_factory=list, init=False)
    settings: tuple[Any, ...] = field(init=False)

    def __post_init__(self):
        self.settings = (self.adapter, *_settings_of_a_pass(self.config))


@dataclass
class _Group:
    """The prompts that share passes: a decoder, the adapter of its passes, and the rows that enter before the next."""

    decoder: Decoder
    adapter: str | None
    entering: dict[int, torch.LongTensor] = field(default_factory=dict)

    @property
    def row_ids(self) -> list[int]:
        return [*self.decoder.canvas.row_ids, *self.entering]


class Engine:
    """Answers prompts in a thread of its own, `num_slots` at the same time; `max_waiting` may wait for a slot."""

    def __init__(self, model: PreTrainedModel, num_slots: int, max_waiting: int):
        self.model = model
        self.num_slots = num_slots if model.hides_padding else 1
        self.max_waiting = max_waiting
        # The error that has ended the decoding thread.
        self.failure: Exception | None = None
        # Since the start.
        self.num_prompts = self.num_passes = self.num_tokens = 0
        self._waiting: deque[Prompt] = deque()
        self._active: dict[int, Prompt] = {}
        self._given_up: set[Prompt] = set()
        # By settings, in the order of their last passes.
        self._groups: dict[tuple[Any, ...], _Group] = {}
        self._turns_of: dict[str, int] = {}
        self._next_row = 0
        self._is_closed = False
        # Guards what the decoding thread shares with others: the waiting, the given up, and the end.
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="hf-dparallel-decoding", daemon=True)
        self._thread.start()

    @property
    def num_active(self) -> int:
        """Prompts that are being decoded."""
        return len(self._active)

    @property
    def num_waiting(self) -> int:
        """Prompts that wait for a slot."""
        return len(self._waiting)

    @property
    def capacity(self) -> int:
        """Prompts that can be taken at the same time, those that wait included."""
        return self.num_slots + self.max_waiting

    @property
    def is_alive(self) -> bool:
        """Whether prompts are taken and answered."""
        return self._thread.is_alive() and not self._is_closed

    def submit(self, prompts: list[Prompt]) -> None:
        """Takes prompts, all or none of them; a [`RequestError`] if too many would wait, or after `stop`."""
        with self._changed:
            if not self.is_alive:
                raise RequestError("The server is shutting down.", status=503)
            # Some of those that wait may only wait for the decoding thread to fill the free slots.
            if self.num_active + self.num_waiting + len(prompts) > self.capacity:
                raise RequestError(
                    f"{self.num_active} prompts are being decoded and {self.num_waiting} wait, of at most "
                    f"{self.max_waiting}. Try again later.",
                    status=429,
                    code="overloaded",
                    headers={"Retry-After": "1"},
                )
            self._waiting.extend(prompts)
            self.num_prompts += len(prompts)
            self._changed.notify()

    def give_up(self, prompts: list[Prompt]) -> None:
        """Frees the slots of prompts whose answers nobody wants any more. Finished prompts are left alone."""
        with self._changed:
            self._given_up.update(prompts)
            self._changed.notify()

    def stop(self) -> None:
        """Ends the decoding after the pass that is running. Prompts that are not finished end with an error."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def close(self) -> None:
        """Stops, and waits for the end."""
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
            logger.error("The decoding thread has failed; nothing is answered any more.", exc_info=True)
        # Whatever has happened, nobody waits for an answer that will not come.
        with self._changed:
            self._is_closed = True
            left = [*self._active.values(), *self._waiting]
        for prompt in left:
            prompt.listener(Progress([], 0, error=RequestError("The server is shutting down.", status=503)))

    def _take_changes(self) -> bool:
        """Waits until there is something to decode, and fills the free slots; `False` at the end."""
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
        # Who is new begins where the others are, and cannot make up for the time before.
        self._turns_of.setdefault(prompt.client, min(self._turns_of.values(), default=0))
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
        """Frees slots. A group without rows is dropped, and its cache with it."""
        by_settings: dict[tuple[Any, ...], set[int]] = {}
        for row_id in row_ids:
            by_settings.setdefault(self._active.pop(row_id).settings, set()).add(row_id)
        for settings, leaving in by_settings.items():
            group = self._groups[settings]
            group.entering = {row_id: ids for row_id, ids in group.entering.items() if row_id not in leaving}
            # Rows that are finished have left the decoder. Removing rows moves all others.
            unfinished = leaving.intersection(group.decoder.canvas.row_ids)
            if unfinished:
                group.decoder.remove(unfinished)
            if not group.row_ids:
                del self._groups[settings]
        clients = {prompt.client for prompt in self._active.values()}
        self._turns_of = {client: turns for client, turns in self._turns_of.items() if client in clients}

    def _choose_group(self) -> _Group:
        """The group whose turn it is: of the client that has had the fewest turns, the one that has waited longest."""
        turns = [
            (settings, self._active[row_id].client)
            for settings, group in self._groups.items()
            for row_id in group.row_ids
        ]
        settings, client = min(turns, key=lambda turn: self._turns_of[turn[1]])
        self._turns_of[client] += 1
        # The last in the order, from now on.
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
            # Whatever it is, requests with other settings go on.
            logger.error("A pass failed; the requests in it end with an error.", exc_info=True)
            del self._groups[self._active[row_ids[0]].settings]
            self._fail(row_ids, error)
            return
        self.num_passes += 1
        for row_id, row in finished.items():
            # Of an infilling, what stood between the masks is told, too.
            end = None if self._active[row_id].config.is_infilling else row.num_tokens
            progress[row_id] = RowProgress(row.tokens[num_sent[row_id] : end].tolist(), row.nfe)
        self._leave([row_id for row_id in row_ids if self._tell(row_id, progress[row_id], finished.get(row_id))])

    def _fail(self, row_ids: list[int], error: Exception) -> None:
        for row_id in row_ids:
            self._active.pop(row_id).listener(Progress([], nfe=0, error=error))

    def _tell(self, row_id: int, new: RowProgress, finished: DecodedRow | None) -> bool:
        """Sends the tokens that are new, and says whether they are the last."""
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
            logger.error("A follower of a prompt has failed.", exc_info=True)
            progress.error = error
        if progress.tokens or progress.draft is not None or progress.is_last:
            self.num_tokens += len(progress.tokens)
            prompt.sent = tokens
            prompt.listener(progress)
        return progress.is_last

    def _followers_of(self, row_id: int) -> list[Follower]:
        # A prompt that is given up has left already.
        return self._active[row_id].followers if row_id in self._active else []

    def _generator_for(self, row_id: int) -> torch.Generator:
        return torch.Generator(self.model.device).manual_seed(self._active[row_id].seed)


def _settings_of_a_pass(config: DiffusionGenerationConfig) -> tuple[Any, ...]:
    """What two prompts that may share passes have in common: every setting that changes a pass, however it is said.

    Settings that no request may have are the same for all.
    """
    # Temperature and cache say all that these do.
    idle = {"do_sample", "use_cache"} | ({"top_k", "top_p"} if config.temperature == 0 else set())
    return tuple(
        (name, value)
        for name, value in config.settings().items()
        if SETTINGS[name].is_requestable and SETTINGS[name].is_on(value) and name not in idle
    )
