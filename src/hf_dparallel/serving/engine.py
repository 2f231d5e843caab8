# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Dynamic batching: one thread decodes the prompts of all requests together, in a fixed number of slots.

A prompt enters a free slot between two passes, and leaves when its answer has ended or its client has disconnected.
Prompts with the same settings and adapter share passes; groups take turns. The other prompts in a batch do not change
an answer.
"""

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import torch
from accelerate.utils.memory import should_reduce_batch_size
from transformers import PreTrainedModel
from transformers.utils import logging

from hf_dparallel_rules.certainty import TokenPrediction

from ..generation.adapters import set_adapter
from ..generation.configuration import DiffusionGenerationConfig
from ..generation.decoder import Decoder
from ..generation.hooks.base import Change, DecodingHook
from ..generation.hooks.standard import make_hooks
from ..generation.output import DecodedRow
from .json import JsonAnswer, JsonHook


logger = logging.get_logger(__name__)


@dataclass(eq=False)
class RequestError(Exception):
    """A refused or failed request, with the fields of OpenAI's error object. `param` names the field."""

    message: str
    param: str | None = None
    status: int = 400
    code: str | None = None
    headers: dict[str, str] | None = None

    def __str__(self) -> str:
        return self.message


class TokenLogprobs(NamedTuple):
    """The log-probability of a token, and the likeliest tokens at its place with theirs.

    In nats, at temperature 1 over the whole vocabulary, as in commit rules. The mask token is not among them.
    """

    logprob: float
    top: list[tuple[int, float]]


@dataclass
class Progress:
    """The new tokens of an answer after a pass, and the passes so far. All earlier tokens are sent.

    The last ones come with a `finish_reason`, "stop" after an end-of-sequence token, else "length", or an `error`.
    """

    tokens: list[int]
    nfe: int
    finish_reason: str | None = None
    error: Exception | None = None
    # Only if the prompt asks for them.
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    @property
    def is_last(self) -> bool:
        return self.finish_reason is not None or self.error is not None


@dataclass(eq=False)
class Prompt:
    """A prompt to decode: its checked tokens, `(prompt_length,)`, on the device of the model; and its progress."""

    input_ids: torch.LongTensor
    config: DiffusionGenerationConfig
    max_tokens: int
    seed: int
    adapter: str | None = None
    # The schema that the answer follows.
    json: JsonAnswer | None = None
    # How many likeliest tokens are given with the log-probability of each token. By default, neither is given.
    num_logprobs: int | None = None
    # Called in the decoding thread with the progress of each pass. It must not block or raise.
    listener: Callable[[Progress], None] = lambda progress: None
    # The number of tokens that the listener has got.
    num_sent: int = field(default=0, init=False)
    # Set by any thread, to stop decoding the prompt and to free its slot.
    is_given_up: bool = field(default=False, init=False)
    # By place in the answer. Of a revised token, these are from its last commit; given tokens have none.
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict, init=False)


class LogprobReader(DecodingHook):
    """Reads the log-probabilities of the prompts that ask for them. `prompts` has those of all rows by row id."""

    def __init__(self, prompts: Mapping[int, Prompt]):
        self._prompts = prompts

    def after(self, prediction: TokenPrediction, change: Change) -> None:
        for row, row_id in enumerate(self.canvas.row_ids):
            prompt = self._prompts[row_id]
            if prompt.num_logprobs is None:
                continue

            written = change.commits[row]
            places = prediction.columns[row, written] - self.canvas.answer(row).start
            logits = prediction.logits[row, written]
            dtype = torch.promote_types(logits.dtype, torch.float32)
            log_probs = torch.log_softmax(logits, dim=-1, dtype=dtype)
            chosen = log_probs.gather(1, change.tokens[row, written, None]).squeeze(1)

            log_probs[:, self.canvas.config.mask_token_id] = -torch.inf
            top = log_probs.topk(min(prompt.num_logprobs, logits.shape[-1] - 1), dim=-1)

            listed = (places.tolist(), chosen.tolist(), top.indices.tolist(), top.values.tolist())
            for place, logprob, top_ids, top_logprobs in zip(*listed, strict=True):
                likeliest = list(zip(top_ids, top_logprobs, strict=True))
                prompt.logprobs[place] = TokenLogprobs(logprob=logprob, top=likeliest)


@dataclass
class _Group:
    """The prompts that share passes: their decoder, their adapter, and the rows that enter before the next pass."""

    decoder: Decoder
    adapter: str | None
    entering: dict[int, torch.LongTensor] = field(default_factory=dict)
    # After a pass that did not fit into memory: how many may enter at once.
    num_entering: int | None = None

    def take_entering(self) -> dict[int, torch.LongTensor]:
        """Returns the rows that enter before the next pass, and removes them from those that wait for it."""
        row_ids = list(self.entering)[: self.num_entering]
        taken = {row_id: self.entering[row_id] for row_id in row_ids}
        for row_id in row_ids:
            del self.entering[row_id]
        return taken


class Engine:
    """Decodes up to `num_slots` prompts together, in its own thread. Up to `max_waiting` prompts wait for a slot.

    Attributes:
        failure (`BaseException`, *optional*): the error that ended the decoding thread.
        active, waiting (`dict[int, Prompt]`, `list[Prompt]`): the prompts that are being decoded, by row id, and those
            that wait for a slot.
    """

    def __init__(self, model: PreTrainedModel, num_slots: int, max_waiting: int):
        self.model = model
        self.num_slots = num_slots if model.hides_padding else 1
        self.max_waiting = max_waiting
        self.failure: BaseException | None = None
        self.waiting: list[Prompt] = []
        self.active: dict[int, Prompt] = {}
        # By adapter and settings, ordered by the last pass.
        self._groups: dict[tuple[str | None, str], _Group] = {}
        self._row_ids = count()
        self._is_closed = False
        # Guards what other threads write: the waiting prompts, and `_is_closed`.
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="hf-dparallel-decoding", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and not self._is_closed

    def submit(self, prompt: Prompt) -> None:
        """Accepts a prompt, or raises a [`RequestError`] if too many wait, or after `close`."""
        with self._changed:
            if not self.is_alive:
                raise RequestError("The server is shutting down.", status=503)

            # There may be free slots that the decoding thread has not filled yet.
            if len(self.active) + len(self.waiting) >= self.num_slots + self.max_waiting:
                raise RequestError(
                    f"The server is busy: {len(self.active)} prompts are being decoded, and {len(self.waiting)} of at "
                    f"most {self.max_waiting} wait. Try again later.",
                    status=429,
                    code="overloaded",
                    headers={"Retry-After": "1"},
                )

            self.waiting.append(prompt)
            self._changed.notify()

    def close(self) -> None:
        """Stops the decoding thread after the current pass. Unfinished prompts end with an error."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    @torch.no_grad()
    def _run(self) -> None:
        try:
            while self._update_slots():
                if self._groups:
                    self._run_pass()
        except BaseException as error:
            self.failure = error
            logger.error("The decoding thread has failed. The server stops.", exc_info=True)

        # Otherwise their clients would wait forever.
        with self._changed:
            self._is_closed = True
            left = [*self.active.values(), *self.waiting]
        for prompt in left:
            prompt.listener(Progress([], 0, error=RequestError("The server is shutting down.", status=503)))

    def _update_slots(self) -> bool:
        """Waits until there is something to decode, and fills the free slots. Returns `False` after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self.active or self.waiting)
            if self._is_closed:
                return False

            given_up = [row_id for row_id, prompt in self.active.items() if prompt.is_given_up]
            self._leave(given_up)

            self.waiting = [prompt for prompt in self.waiting if not prompt.is_given_up]
            while self.waiting and len(self.active) < self.num_slots:
                prompt = self.waiting.pop(0)
                self._enter(prompt)
        return True

    def _enter(self, prompt: Prompt) -> None:
        """Gives a prompt a slot, in the group with its adapter and settings."""
        row_id = next(self._row_ids)
        self.active[row_id] = prompt
        try:
            key = (prompt.adapter, repr(prompt.config.settings()))
            if key not in self._groups:
                # A decoder is made with its adapter.
                set_adapter(self.model, prompt.adapter)
                hooks = [*make_hooks(prompt.config), JsonHook(self.active), LogprobReader(self.active)]
                decoder = self.model.make_decoder(prompt.config, hooks, self._generator_for)
                self._groups[key] = _Group(decoder=decoder, adapter=prompt.adapter)
            self._groups[key].entering[row_id] = prompt.input_ids
        except Exception as error:
            logger.error("A prompt cannot be decoded.", exc_info=True)
            del self.active[row_id]
            prompt.listener(Progress([], nfe=0, error=error))

    def _leave(self, row_ids: Collection[int]) -> None:
        """Frees the slots of rows. Drops groups without rows, together with their caches."""
        for key, group in list(self._groups.items()):
            group.entering = {row_id: ids for row_id, ids in group.entering.items() if row_id not in row_ids}

            # Finished rows have already left the decoder. Removing rows copies all others.
            unfinished = set(row_ids).intersection(group.decoder.canvas.row_ids)
            if unfinished:
                group.decoder.remove(unfinished)
            if not (group.entering or group.decoder.canvas.row_ids):
                del self._groups[key]

        for row_id in row_ids:
            del self.active[row_id]

    def _run_pass(self) -> None:
        """Runs a pass of the group that has waited longest, and sends its listeners what is new."""
        key = next(iter(self._groups))
        group = self._groups.pop(key)
        # At the end of the line.
        self._groups[key] = group

        canvas = group.decoder.canvas
        added = group.take_entering()
        try:
            set_adapter(self.model, group.adapter)
            if added:
                group.decoder.add_prompts(added)
            row_ids = list(canvas.row_ids)
            rows = group.decoder.step()
        except Exception as error:
            logger.error("A pass failed.", exc_info=True)
            self._end_failed_pass(group, added, error)
            return

        finished = {row.index: row for row in rows}
        statuses = dict(zip(canvas.row_ids, canvas.status, strict=True))
        ended = []
        for row_id in row_ids:
            prompt = self.active[row_id]
            if row_id in finished:
                progress = _last_progress(prompt, finished[row_id])
            else:
                status = statuses[row_id]
                progress = _progress(prompt, status.final_tokens(prompt.num_sent), status.nfe)

            prompt.num_sent += len(progress.tokens)
            if progress.tokens or progress.is_last:
                prompt.listener(progress)
            if progress.is_last:
                ended.append(row_id)

        if ended:
            self._leave(ended)

    def _end_failed_pass(self, group: _Group, added: dict[int, torch.LongTensor], error: Exception) -> None:
        """Ends the prompts of a pass with an error; if it did not fit into memory, only the one that was added."""
        in_canvas = group.decoder.canvas.row_ids
        row_ids = [*in_canvas, *added.keys() - in_canvas]

        if added and (isinstance(error, torch.OutOfMemoryError) or should_reduce_batch_size(error)):
            group.decoder.remove(added)
            if len(added) > 1:
                # One by one.
                group.entering = added | group.entering
                group.num_entering = 1
                return
            row_ids = list(added)

        for row_id in row_ids:
            self.active[row_id].listener(Progress([], nfe=0, error=error))
        self._leave(row_ids)

    def _generator_for(self, row_id: int) -> torch.Generator:
        return torch.Generator(self.model.device).manual_seed(self.active[row_id].seed)


def _progress(prompt: Prompt, tokens: list[int], nfe: int) -> Progress:
    """Returns the progress of a prompt by new tokens, the last one if they reach its `max_tokens`."""
    start = prompt.num_sent
    end = min(start + len(tokens), prompt.max_tokens)
    progress = Progress(tokens=tokens[: end - start], nfe=nfe)

    if prompt.num_logprobs is not None:
        # Given tokens were never predicted. Their probability is 1.
        given = TokenLogprobs(logprob=0.0, top=[])
        progress.logprobs = [prompt.logprobs.get(place, given) for place in range(start, end)]

    if end == prompt.max_tokens:
        progress.finish_reason = _finish_reason(prompt, progress.tokens)
    return progress


def _last_progress(prompt: Prompt, row: DecodedRow) -> Progress:
    """Returns the last progress of a prompt, whose row is finished or has failed."""
    tokens = row.tokens[prompt.num_sent : row.num_tokens].tolist()
    progress = _progress(prompt, tokens, row.nfe)
    progress.error = row.error
    progress.finish_reason = None
    if row.error is None:
        progress.finish_reason = _finish_reason(prompt, progress.tokens)
    return progress


def _finish_reason(prompt: Prompt, tokens: list[int]) -> str:
    if tokens and tokens[-1] in prompt.config.eos_token_ids:
        return "stop"
    return "length"
