# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The decoding loop: one pass after the other over the rows of a canvas."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel

from hf_dparallel_rules.certainty import TokenPrediction, measure_certainty
from hf_dparallel_rules.commit_rules import make_rule

from .canvas import Canvas
from .compiled import CompiledPass
from .configuration import DiffusionGenerationConfig
from .hooks.base import Change, DecodingHook
from .output import DecodedRow
from .plan import Planner, make_planner
from .runner import Runner
from .sampling import exponential_noise, sample_tokens


class Decoder:
    """Decodes rows together. Rows can be added at any time, and leave when they are finished.

    The configuration has every setting, special tokens included. `generator_for` gives the random state of a row; by
    default torch's global one is used. A pass that was interrupted is run again, or finished, by the next [`step`].
    """

    def __init__(
        self,
        model: PreTrainedModel,
        config: DiffusionGenerationConfig,
        hooks: Sequence[DecodingHook],
        generator_for: Callable[[int], torch.Generator] | None = None,
    ):
        self.config = config
        self.hooks = list(hooks)
        self.model = model
        self.canvas = self._make_canvas()
        self.planner = self._make_planner()
        self.runner = Runner(model, self.canvas, self.planner, self.hooks)
        self.rule = make_rule(config, self.canvas)
        self.generator_for = generator_for
        # By row id. Without them, rows draw from torch's global state.
        self.generators: dict[int, torch.Generator] = {}
        self._entered: dict[int, float] = {}
        # What a pass has predicted and changed, until its end.
        self._decided: tuple[TokenPrediction, Change] | None = None
        self.compiled: CompiledPass | None = None
        if config.compile_config is not None:
            self.compiled = CompiledPass(self)
        for hook in self.hooks:
            hook.attach(model, self.canvas)

    def _make_canvas(self) -> Canvas:
        return Canvas(
            self.config,
            attention=self.model.attention,
            predicts_next_block=self.model.predicts_next_block,
            revises=any(hook.revises for hook in self.hooks),
        )

    def _make_planner(self) -> Planner:
        return make_planner(self.canvas, self.model)

    def __len__(self) -> int:
        return len(self.canvas)

    def add_prompts(self, prompts: Mapping[int, torch.LongTensor]) -> None:
        """Adds prompts of any lengths, `(prompt_length,)` each, by row ids that are not in use."""
        self._finish_pass()
        for row_id in prompts:
            self._entered[row_id] = time.perf_counter()
            if self.generator_for is not None:
                self.generators[row_id] = self.generator_for(row_id)

        self.canvas.add(prompts)
        for hook in self.hooks:
            hook.enter(list(prompts))

    def remove(self, row_ids: Collection[int]) -> None:
        """Removes unfinished rows. The others go on as if these had never been there."""
        self._finish_pass()
        self.canvas.remove(row_ids)
        for row_id in row_ids:
            self._leave(row_id)

    def step(self) -> list[DecodedRow]:
        """Runs one pass, and returns the rows that are finished after it."""
        self._finish_pass()
        # Rows whose whole answer was given as they entered take no pass.
        finished = self.canvas.pop_finished()
        if self.canvas and not finished:
            self._run_pass()
            finished = self.canvas.pop_finished()

        rows = []
        for row in finished:
            fields = self._leave(row.index)
            rows.append(replace(row, **fields))
        return rows

    def _run_pass(self) -> None:
        if self.compiled is not None:
            self._decided = self.compiled.run_pass()
        else:
            columns, masked = self.canvas.open_columns()
            logits = self.runner.logits(self.wanted(columns))
            self._decided = self.decide(columns, masked, logits)
        self._finish_pass()

    def _finish_pass(self) -> None:
        """Ends a pass that has decided. Most interruptions come here, where the host waits for the device."""
        if self._decided is None:
            return
        self.planner.note()
        # Rows whose answer has ended leave.
        self.canvas.read_status()

        prediction, change = self._decided
        self._decided = None
        self._end_pass(prediction, change)

    def _end_pass(self, prediction: TokenPrediction, change: Change) -> None:
        for hook in self.hooks:
            hook.after(prediction, change)

    def wanted(self, columns: torch.LongTensor) -> torch.LongTensor:
        """Returns the columns to score: those that may be committed, or the whole answer if a hook looks ahead."""
        if any(hook.looks_ahead for hook in self.hooks):
            return self.canvas.column_ids[self.canvas.first_new :].expand(len(columns), -1)
        return columns

    def decide(
        self, columns: torch.LongTensor, masked: torch.BoolTensor, logits: torch.Tensor
    ) -> tuple[TokenPrediction, Change]:
        """Commits tokens of a pass by the scores of [`wanted`] columns, and moves the rows on."""
        canvas = self.canvas
        prediction = self._predict(columns, masked, logits)
        considered = masked
        if canvas.revises:
            prediction.revisable = canvas.revisable.gather(1, columns)
            considered = masked | prediction.revisable

        # Pick the predictions to commit, by the commit rule; at least one in each row.
        change = Change(tokens=prediction.tokens, commits=self.rule(prediction, masked))
        for hook in self.hooks:
            change = hook.change(prediction, change)

        # Write them into the canvas.
        canvas.commit(columns, change.tokens, change.commits, change.pending)

        # A row whose block is decided enters its next block.
        is_nan = considered & prediction.is_nan
        canvas.advance(is_nan.sum(dim=1))
        return prediction, change

    def _predict(self, columns: torch.LongTensor, masked: torch.BoolTensor, logits: torch.Tensor) -> TokenPrediction:
        """Predicts the tokens at `columns`, `(rows, columns)`, of which some are `masked`."""
        canvas = self.canvas
        wanted = self.wanted(columns)
        if wanted is columns:
            logits = self._processed(columns, masked, logits)
        else:
            logits = self._processed(wanted, canvas.masked.gather(1, wanted), logits)
            logits = logits.take_along_dim((columns - wanted[:, :1])[..., None], dim=1)

        prediction = self._sample(columns, logits)
        prediction.masked = masked
        return prediction

    def _processed(self, columns: torch.LongTensor, masked: torch.BoolTensor, logits: torch.Tensor) -> torch.Tensor:
        for hook in self.hooks:
            logits = hook.scores(columns, masked, logits)
        return logits

    def _sample(
        self,
        columns: torch.LongTensor,
        logits: torch.Tensor,
        num_sampled: int | None = None,
        noise: torch.Tensor | None = None,
    ) -> TokenPrediction:
        """Predicts the tokens at `columns` from their scores, and measures their certainty at temperature 1.

        With a temperature they are sampled by `noise`, by default drawn for the first `num_sampled` of each row (its
        open masks).
        """
        config = self.config
        tokens = None
        if config.temperature > 0:
            if noise is None:
                generators = [self.generators[row_id] for row_id in self.canvas.row_ids if self.generators]
                counts = [status.num_open if num_sampled is None else num_sampled for status in self.canvas.status]
                noise = exponential_noise(logits, generators, counts)
            sampling = (config.temperature, config.top_k, config.top_p, config.min_p)
            tokens = sample_tokens(logits, noise, config.mask_token_id, *sampling)

        prediction = measure_certainty(logits, config.mask_token_id, tokens)
        prediction.columns = columns
        return prediction

    def _leave(self, row_id: int) -> dict[str, Any]:
        """Has the hooks forget a row, and returns their fields of its [`DecodedRow`]."""
        if not self.canvas:
            self.runner.release()
        self.generators.pop(row_id, None)
        fields: dict[str, Any] = {"seconds": time.perf_counter() - self._entered.pop(row_id)}
        for hook in self.hooks:
            fields |= hook.leave(row_id)
        return fields
