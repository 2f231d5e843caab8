# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Self-speculative decoding of autoregressive models: masks draft tokens, which causal logits verify.

A pass computes the drafted tokens, causally and without the adapter, and a window of masks, with the adapter. The
drafts that agree with the model's own tokens are accepted, and its own next token with them. The window begins behind
the first drafts that the commit rule would commit, and does not see later ones. If those before it are accepted, the
masks draft the tokens that follow, whatever becomes of the later ones. Else the drafts after the rejected one are the
next ones, and the next window begins at the next token.
Self-speculative decoding with mask tokens is from https://huggingface.co/papers/2507.11851.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import PreTrainedModel

from hf_dparallel_rules.certainty import LikeliestTokens, TokenPrediction, measure_certainty

from ..generation.canvas import RowStatus
from ..generation.configuration import DiffusionGenerationConfig
from ..generation.decoder import Decoder
from ..generation.hooks.base import Change, DecodingHook
from ..generation.hooks.processing import ScoreProcessing
from ..generation.inputs import vocabulary_size
from .canvas import DraftCanvas, DraftPlanner
from .draft_length import DraftLength, draft_length_of
from .gate import gate_adapters
from .gated_pass import acting_at
from .processing import CausalScores


# A draft that the commit rule would not commit is tried if its probability, times those of the drafts before it, is at
# least this.
_LEAST_CHANCE = 0.03


class SpeculativeDecoder(Decoder):
    """Decodes rows of a model with a causal past by drafts, which begin wherever a row stands.

    With `exact=True` masks draft and the causal logits verify; else what the masks draft is committed. With a
    generator the draws of a verified row are the ones of one token at a time, and so is the state that is left.
    """

    canvas: DraftCanvas
    planner: DraftPlanner

    def __init__(
        self, model: PreTrainedModel, config: DiffusionGenerationConfig, hooks: Sequence[DecodingHook], *args: Any
    ):
        if config.exact:
            hooks = [CausalScores(hook, self._pick) if isinstance(hook, ScoreProcessing) else hook for hook in hooks]
        # The noise of the open places of all rows, `(rows, places, vocab_size)`, with `temperature > 0`.
        self._drawn: torch.Tensor | None = None
        # By row, the generator that it shares with no other, and the states of that before and after each draw.
        self._states: dict[int, tuple[torch.Generator, list[torch.Tensor]]] = {}
        # The rows before the pass.
        self._before: list[RowStatus] = []
        # By row id, how many drafts were proposed and accepted at each place.
        self._proposed: dict[int, list[int]] = {}
        self._accepted: dict[int, list[int]] = {}
        super().__init__(model, config, hooks, *args)

        if gate_adapters(model):
            self.runner.gate = self._gate
        self._length: DraftLength | None = None
        if config.exact and self.canvas.num_masks and self.planner.is_cached and config.compile_config is None:
            self._length = draft_length_of(model, config.block_length - 1)
        # The rows of the last pass, and how many masks drafted.
        self._drafted: tuple[set[int], int] = (set(), 0)

    def _make_canvas(self) -> DraftCanvas:
        config = self.config
        # One token in each pass needs no masks.
        is_plain = config.commit_rule() in (None, "denoising_steps") or config.block_length == 1
        num_masks = 0 if is_plain else config.block_length - int(self.model.shift_logits)
        return DraftCanvas(config, self.model.attention, num_masks)

    def _make_planner(self) -> DraftPlanner:
        return DraftPlanner(self.canvas, self.model)

    def _gate(self, is_mask: torch.BoolTensor) -> AbstractContextManager[None]:
        """Has adapters act at the masks of a pass; where it has none, they compute nothing."""
        return acting_at(is_mask if self.canvas.num_masks else None)

    def _run_pass(self) -> None:
        canvas = self.canvas
        length = self._length
        self._before = canvas.status
        if length is None:
            super()._run_pass()
            return

        # A row decides a token in the pass, and its last token is never drafted.
        num_left = self.config.max_new_tokens - 2 - min(status.num_decided for status in canvas.status)
        num_drafts = length.choose(len(canvas), max(num_left, 0))
        canvas.num_masks = num_drafts + self.planner.first_mask if num_drafts else 0
        start = length.clock()
        super()._run_pass()
        if self.planner.num_computed:
            length.note_pass(len(canvas), self.planner.num_computed, num_drafts > 0, length.clock() - start)

    def decide(
        self, columns: torch.LongTensor, masked: torch.BoolTensor, logits: torch.Tensor
    ) -> tuple[TokenPrediction, Change]:
        """Commits tokens of a pass, and drafts those that the next one verifies."""
        logits = self._with_mask(logits)
        if self.config.exact:
            prediction, change = self._verify(columns, masked, logits)
        else:
            prediction, change = self._take(columns, logits)
        self.canvas.commit(prediction.columns, *change)
        is_nan = prediction.masked & prediction.is_nan
        self.canvas.advance(is_nan.sum(dim=1))
        return prediction, change

    def _end_pass(self, prediction: TokenPrediction, change: Change) -> None:
        before = self._before
        num_before = [status.num_decided for status in before]
        num_proposed = [status.num_open - 1 for status in before]
        num_decided = [now.num_decided - then for now, then in zip(self.canvas.status, num_before, strict=True)]
        self._count(num_proposed, num_decided)

        # The pass is done: if it is interrupted from here on, it is not run again.
        states = self._states
        self._states = {}
        self._rewind(states, change, num_before)
        super()._end_pass(prediction, change)
        # Criteria may have ended rows.
        self._rewind(states, change, num_before)

    def _with_mask(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns scores with those of a mask token after the vocabulary, which has none."""
        num_missing = self.config.mask_token_id + 1 - logits.shape[-1]
        if num_missing <= 0:
            return logits
        return pad(logits, (0, num_missing), value=-torch.inf)

    def _verify(
        self, columns: torch.LongTensor, is_open: torch.BoolTensor, logits: torch.Tensor
    ) -> tuple[TokenPrediction, Change]:
        """Returns the model's own tokens, and the change up to the first that was not drafted; writes drafts."""
        canvas = self.canvas
        count = columns.shape[1]
        prediction = self._predict_causal(columns, is_open, logits[:, :count])
        prediction.masked = is_open

        drafts = canvas.drafts.value.gather(1, columns)
        agrees = is_open & (prediction.tokens == drafts)
        num_agreeing = agrees.cumprod(dim=1).sum(dim=1, keepdim=True)
        change = Change(prediction.tokens, is_open & (canvas.column_ids[:count] <= num_agreeing))
        for hook in self.hooks:
            change = hook.change(prediction, change)

        self._draft(logits[:, count:], columns[:, :1], change.commits.sum(dim=1, keepdim=True))
        return prediction, change

    def _take(self, columns: torch.LongTensor, logits: torch.Tensor) -> tuple[TokenPrediction, Change]:
        """Returns the predictions of a pass, and the change up to the first that the commit rule does not commit."""
        canvas = self.canvas
        count = logits.shape[1]
        columns = columns + canvas.column_ids[:count]
        masked = canvas.block.gather(1, columns) < canvas.layout.max_new_tokens
        prediction = self._sample(columns, self._processed(columns, masked, logits), num_sampled=count)
        prediction.masked = masked

        is_sure = self.rule(prediction, masked) | (canvas.column_ids[:count] == 0)
        return prediction, Change(prediction.tokens, masked & is_sure.cumprod(dim=1).bool())

    def _draft(self, logits: torch.Tensor, first_open: torch.LongTensor, num_decided: torch.LongTensor) -> None:
        """Writes the next drafts, and places the window behind the first ones that the commit rule would commit.

        Where a draft before the last window was rejected, later ones stay, and the window begins at the next token.
        `logits` are those of the masks; `first_open` and `num_decided`, `(rows, 1)`, are the first column that was
        open, and how many tokens have been decided from there on.
        """
        canvas = self.canvas
        mask_token_id = self.config.mask_token_id
        count = logits.shape[1]
        empty = torch.full_like(canvas.sequences, mask_token_id)
        if not count:
            canvas.drafts.value = empty
            return

        num_before = canvas.window_start() - canvas.open_from[:, None]
        is_right_before = num_before < num_decided
        first = first_open + num_decided
        drafted = measure_certainty(logits, mask_token_id)
        # The first mask drafts the token after the one that it stands for.
        drafted.columns = first_open + num_before + 1 + canvas.column_ids[:count]
        is_decided = drafted.columns < first

        # The rule chooses among all that the masks draft, decided tokens included.
        is_sure = self.rule(drafted, torch.ones_like(is_decided)) | is_decided
        is_sure = is_sure.cumprod(dim=1).bool()
        num_sure = (is_sure & ~is_decided & is_right_before).sum(dim=1)
        canvas.window.value = canvas.block.gather(1, first).squeeze(1) + num_sure

        chance = drafted.confidence.masked_fill(is_decided, 1.0).cumprod(dim=1)
        tokens = drafted.tokens.where(is_sure | (chance >= _LEAST_CHANCE), mask_token_id)
        drafts = torch.where(is_right_before, empty.scatter(1, drafted.columns, tokens), canvas.drafts.value)

        # The last token of the answer is never drafted: the pass that verifies the one before it predicts it.
        room = canvas.layout.max_new_tokens - 1 - canvas.block.gather(1, first)
        order = canvas.column_ids - first
        is_drafted = (order >= 0) & (order < room.clamp(max=count))
        canvas.drafts.value = drafts.where(is_drafted, mask_token_id)

    def _predict_causal(
        self, columns: torch.LongTensor, is_open: torch.BoolTensor, logits: torch.Tensor
    ) -> TokenPrediction:
        """Predicts the tokens of the open places as one token at a time would."""
        for generator, states in self._states.values():
            # A pass was interrupted after it had drawn.
            generator.set_state(states[0])
        self._drawn = None
        self._states = {}
        if self.config.temperature > 0:
            self._drawn = self._draw(logits)
        logits = self._processed(columns, is_open, logits)
        if self._drawn is not None or self.compiled is not None:
            return self._sample(columns, logits, noise=self._drawn)

        prediction = LikeliestTokens(logits, self.config.mask_token_id)
        prediction.columns = columns
        return prediction

    def _draw(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns the noise of the open places, each with a draw of its own, and keeps the states of generators."""
        drawn = torch.ones_like(logits, dtype=torch.float32)
        of_torch = torch.default_generator
        if logits.device.type == "cuda":
            of_torch = torch.cuda.default_generators[logits.device.index]
        generators = [self.generators.get(row_id, of_torch) for row_id in self.canvas.row_ids]

        for row, (generator, status) in enumerate(zip(generators, self.canvas.status, strict=True)):
            states = [generator.get_state()]
            for place in range(status.num_open):
                # transformers draws for the vocabulary.
                noise = drawn[row, place, : vocabulary_size(self.model)]
                noise.exponential_(generator=generator if self.generators else None)
                states.append(generator.get_state())
            if generators.count(generator) == 1:
                self._states[row] = (generator, states)
        return drawn

    def _rewind(
        self, states: dict[int, tuple[torch.Generator, list[torch.Tensor]]], change: Change, num_decided: list[int]
    ) -> None:
        """Takes back the draws of tokens that were not accepted, or follow the answer: others draw them."""
        if not states:
            return

        num_committed = change.commits.sum(dim=1).tolist()
        for row, (generator, of_row) in states.items():
            # A criterion that was interrupted may end an answer later, before the tokens of this pass.
            num_left = max(self.canvas.status[row].length - num_decided[row], 0)
            generator.set_state(of_row[min(num_committed[row], num_left)])

    def _pick(self, row: int, place: int, scores: torch.Tensor) -> torch.Tensor:
        """Returns the token at an open place of a row, by its scores, `(1, vocab_size)`."""
        noise = None
        if self._drawn is not None:
            noise = self._drawn[row : row + 1, place : place + 1]
        return self._sample(None, scores[None], noise=noise).tokens

    def _count(self, num_proposed: list[int], num_decided: list[int]) -> None:
        """Counts the drafts of a pass, from how many tokens each row has decided in it."""
        drafted_for, num_drafts = self._drafted
        proposed: list[int] = []
        accepted: list[int] = []
        for row_id, count, decided in zip(self.canvas.row_ids, num_proposed, num_decided, strict=True):
            num_accepted = min(count, max(decided - 1, 0))
            if row_id in drafted_for:
                proposed.append(count)
                accepted.append(num_accepted)

            of_row = self._proposed.setdefault(row_id, [0] * (self.config.block_length - 1))
            taken = self._accepted.setdefault(row_id, [0] * (self.config.block_length - 1))
            for place in range(count):
                of_row[place] += 1
                taken[place] += place < num_accepted

        if self._length is not None:
            self._length.note_drafts(num_drafts, proposed, accepted)
            num_drafts = max(self.canvas.num_masks - self.planner.first_mask, 0)
            self._drafted = (set(self.canvas.row_ids), num_drafts)

    def _leave(self, row_id: int) -> dict[str, Any]:
        fields = super()._leave(row_id)
        if self.config.exact:
            nothing = [0] * (self.config.block_length - 1)
            fields["drafts_proposed"] = torch.tensor(self._proposed.pop(row_id, nothing), dtype=torch.long)
            fields["drafts_accepted"] = torch.tensor(self._accepted.pop(row_id, nothing), dtype=torch.long)
        return fields
