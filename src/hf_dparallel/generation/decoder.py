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
from .configuration import DiffusionGenerationConfig
from .hooks.base import Change, DecodingHook
from .output import DecodedRow
from .runner import Runner
from .sampling import exponential_noise, sample_tokens


class Decoder:
    """Decodes rows together. Rows can be added at any time, and leave when they are finished.

    The configuration has every setting, special tokens included. `generator_for` gives the random state of a row; by
    default torch's global one is used.
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
        self.runner = Runner(model, self.canvas, self.hooks)
        self.rule = make_rule(config, self.canvas)
        self.generator_for = generator_for
        # By row id. Without them, rows draw from torch's global state.
        self.generators: dict[int, torch.Generator] = {}
        self._entered: dict[int, float] = {}
        for hook in self.hooks:
            hook.attach(model, self.canvas)

    def _make_canvas(self) -> Canvas:
        return Canvas(
            self.config,
            attention=self.model.attention,
            predicts_next_block=self.model.predicts_next_block,
            revises=any(hook.revises for hook in self.hooks),
        )

    def __len__(self) -> int:
        return len(self.canvas)

    def add_prompts(self, prompts: Mapping[int, torch.LongTensor]) -> None:
        """Adds prompts of any lengths, `(prompt_length,)` each, by row ids that are not in use."""
        if self.generator_for is not None:
            self.generators |= {row_id: self.generator_for(row_id) for row_id in prompts}
        self._entered |= dict.fromkeys(prompts, time.perf_counter())
        self.canvas.add(prompts)
        for hook in self.hooks:
            hook.enter(list(prompts))

    def remove(self, row_ids: Collection[int]) -> None:
        """Removes unfinished rows. The others go on as if these had never been there."""
        self.canvas.remove(row_ids)
        for row_id in row_ids:
            self._leave(row_id)

    def step(self) -> list[DecodedRow]:
        """Runs one pass, and returns the rows that are finished after it."""
        # A row whose whole answer was given as it entered takes no pass.
        finished = self.canvas.pop_finished()
        if self.canvas:
            self._run_pass()
            finished += self.canvas.pop_finished()
        return [replace(row, **self._leave(row.index)) for row in finished]

    def _run_pass(self) -> None:
        # Predict the masked tokens of each row's open blocks, and the decided ones there if they may be revised.
        columns, masked = self.canvas.open_columns()
        prediction = self._predict(columns)
        prediction.masked = considered = masked
        if self.canvas.revises:
            prediction.revisable = self.canvas.revisable.gather(1, columns)
            considered = masked | prediction.revisable
        # Pick the predictions to commit, by the commit rule; at least one in each row.
        change = Change(prediction.tokens, self.rule(prediction, masked))
        for hook in self.hooks:
            change = hook.change(prediction, change)
        # Write them into the canvas.
        self.canvas.commit(columns, *change)
        # Move on: a row whose block is decided enters its next block, a row whose answer has ended leaves.
        self.canvas.advance((considered & prediction.entropy.isnan()).sum(dim=1))
        for hook in self.hooks:
            hook.after(prediction, change)

    def _predict(self, columns: torch.LongTensor) -> TokenPrediction:
        """Runs the model and predicts the tokens at `columns`, `(rows, columns)`."""
        scored = columns
        if any(hook.looks_ahead for hook in self.hooks):
            scored = self.canvas.column_ids[self.canvas.first_new :].expand(len(columns), -1)
        logits = self._processed(scored, self.runner.logits(scored))
        if scored is not columns:
            logits = logits.take_along_dim((columns - scored[:, :1])[..., None], dim=1)
        return self._sample(columns, logits, [status.num_open for status in self.canvas.status])

    def _processed(self, columns: torch.LongTensor, logits: torch.Tensor) -> torch.Tensor:
        for hook in self.hooks:
            logits = hook.scores(columns, logits)
        return logits

    def _sample(
        self,
        columns: torch.LongTensor,
        logits: torch.Tensor,
        num_sampled: Sequence[int] = (),
        noise: torch.Tensor | None = None,
    ) -> TokenPrediction:
        """Predicts the tokens at `columns` from their scores, and measures their certainty at temperature 1.

        With a temperature they are sampled by `noise`, by default drawn for the first `num_sampled` of each row.
        """
        config, tokens = self.config, None
        if config.temperature > 0:
            if noise is None:
                generators = [self.generators[row_id] for row_id in self.canvas.row_ids if self.generators]
                noise = exponential_noise(logits, generators, num_sampled)
            sampling = (config.temperature, config.top_k, config.top_p, config.min_p)
            tokens = sample_tokens(logits, noise, config.mask_token_id, *sampling)
        prediction = measure_certainty(logits, config.mask_token_id, tokens)
        prediction.columns = columns
        return prediction

    def _leave(self, row_id: int) -> dict[str, Any]:
        """Has the hooks forget a row, and returns their fields of its [`DecodedRow`]."""
        self.generators.pop(row_id, None)
        fields = {name: value for hook in self.hooks for name, value in hook.leave(row_id).items()}
        return {"seconds": time.perf_counter() - self._entered.pop(row_id), **fields}
