# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The decoding loop: one pass after the other over the rows of a canvas."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from .canvas import Canvas, FinishedRow, RowProgress
from .commit_rules import make_rule
from .configuration import DiffusionGenerationConfig
from .forward import make_forward
from .guides import Guide, Guides
from .history import CertaintyHistory
from .inputs import check_generators
from .logprobs import CommitLogprobs
from .prediction import TokenPrediction, predict_tokens
from .processing import ScoreProcessing
from .revision import Change, make_revision
from .stopping import StopCheck, TimeLimit
from .streaming import DraftStream


# Few widths to compile, and little padding.
_COMPILED_WIDTH_MULTIPLE = 64


@dataclass
class DecodedRow(FinishedRow):
    """A finished row with its certainty history, or with what went wrong in it.

    Args:
        entropies, confidences (`torch.FloatTensor` of shape `(nfe, max_new_tokens)`, *optional*), candidates,
        candidate_probabilities (of shape `(nfe, max_new_tokens, 5)`, *optional*), standing (`torch.LongTensor` of
            shape `(nfe, max_new_tokens)`, *optional*): as in [`DiffusionGenerationOutput`].
        seconds (`float`): wall-clock time from the row's entry into the batch to its end, other rows' share included.
        error (`Exception`, *optional*): why the row was not decoded to its end.
    """

    entropies: torch.FloatTensor | None = None
    confidences: torch.FloatTensor | None = None
    candidates: torch.LongTensor | None = None
    candidate_probabilities: torch.FloatTensor | None = None
    standing: torch.LongTensor | None = None
    seconds: float = 0.0
    error: Exception | None = None


class Decoder:
    """Decodes rows together. Rows can be added at any time, and leave when they are finished.

    Args:
        model ([`~transformers.PreTrainedModel`]): with [`~DiffusionGenerationMixin.generate`].
        config ([`DiffusionGenerationConfig`]): every setting, special tokens included.
        logits_processor, stopping_criteria, streamer: as in [`~DiffusionGenerationMixin.generate`].
        generator_for (`Callable`, *optional*): gives the random state of a row; by default torch's global one is used.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        config: DiffusionGenerationConfig,
        logits_processor: LogitsProcessorList | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        streamer: BaseStreamer | None = None,
        generator_for: Callable[[int], torch.Generator] | None = None,
    ):
        self.config = config
        self.canvas = Canvas(config, _COMPILED_WIDTH_MULTIPLE if config.compiles else 1, model.is_block_causal)
        self.forward = make_forward(model, self.canvas)
        self.rule = make_rule(config, self.canvas)
        self.revision = make_revision(config, self.canvas)
        self.processing = ScoreProcessing(self.canvas, logits_processor)
        self.stop_check = StopCheck(self.canvas, stopping_criteria) if stopping_criteria else None
        self.time_limit = TimeLimit(self.canvas, config.max_time) if config.max_time is not None else None
        self.stream = DraftStream(self.canvas, streamer) if streamer is not None else None
        self.guides = Guides(self.canvas)
        self.history = CertaintyHistory(self.canvas) if config.output_certainty else None
        self.generator_for = generator_for
        self._generators: dict[int, torch.Generator] = {}
        self._added_at: dict[int, float] = {}
        self._logprobs: dict[int, CommitLogprobs] = {}

    def __len__(self) -> int:
        return len(self.canvas)

    def add(self, row_ids: list[int], input_ids: torch.LongTensor, attention_mask: torch.LongTensor) -> None:
        """Adds left-padded prompts, both `(rows, prompt_length)`, under numbers that are not in use.

        Raises:
            ValueError: if their generators are on another device.
        """
        if self.generator_for is not None:
            generators = {row_id: self.generator_for(row_id) for row_id in row_ids}
            check_generators(generators.values(), input_ids.device)
            self._generators |= generators
        self._added_at |= dict.fromkeys(row_ids, time.perf_counter())
        self.canvas.add(row_ids, input_ids, attention_mask)
        if self.stream is not None:
            self.stream.start()

    def add_prompts(
        self,
        prompts: Mapping[int, torch.LongTensor],
        logprobs: Mapping[int, CommitLogprobs] | None = None,
        guides: Mapping[int, Guide] | None = None,
    ) -> None:
        """Adds prompts of any lengths, `(prompt_length,)` each, by numbers that are not in use.

        Of some of them, `logprobs` collects the log-probabilities, and `guides` say of what form the answers are.
        """
        self._logprobs |= logprobs or {}
        ids, is_prompt = (
            pad_sequence(rows, batch_first=True, padding_side="left")
            for rows in (list(prompts.values()), [torch.ones_like(ids) for ids in prompts.values()])
        )
        self.add(list(prompts), ids, is_prompt)
        self.guides.begin(guides or {})

    def progress(self) -> dict[int, RowProgress]:
        """How far each row has come, by its number."""
        return self.canvas.progress()

    def remove(self, row_ids: Collection[int]) -> None:
        """Gives up rows that are not finished. The others go on as if these had never been there."""
        self.canvas.remove(row_ids)
        for row_id in row_ids:
            del self._added_at[row_id]
            self._forget(row_id)
            if self.history is not None:
                self.history.discard(row_id)

    def step(self) -> list[DecodedRow]:
        """Runs one pass, and returns the rows that are finished after it."""
        # Infilling can meet a prompt without masks.
        finished = self.canvas.pop_finished()
        if self.canvas:
            self._run_pass()
            finished += self.canvas.pop_finished()
        return [self._decoded(row) for row in finished]

    def _run_pass(self) -> None:
        # Predict the masked tokens of each row's open blocks, and the decided ones there if they may be revised.
        columns, masked = self.canvas.open_columns()
        prediction = self._predict(columns)
        # Pick the predictions to commit, by the commit rule; at least one in each row.
        accepted = self.rule(prediction, masked)
        considered, change = masked, Change(prediction.tokens, accepted)
        if self.revision is not None:
            considered = masked | self.canvas.revisable.gather(1, columns)
            change = self.revision(prediction, masked, accepted)
        if self.guides:
            change = self.guides(prediction, change)
        if self._logprobs:
            self._record_logprobs(prediction, change)
        # Write them into the canvas.
        self.canvas.commit(columns, *change)
        # Move on: a row whose block is decided enters its next block, a row whose answer has ended leaves.
        self.canvas.advance((considered & prediction.entropy.isnan()).any(dim=1))
        for check in (self.stop_check, self.time_limit):
            if check is not None:
                check.update()
        if self.stream is not None:
            self.stream.update(columns, considered, prediction.tokens)

    def _predict(self, columns: torch.LongTensor) -> TokenPrediction:
        """Runs the model and predicts the tokens at `columns`, `(rows, columns)`."""
        # The history is of the whole canvas, if a pass can tell something about blocks that are not open.
        scored = self.canvas.new_columns() if self.history is not None and self.canvas.predicts_ahead else columns
        logits = self.forward.logits(scored)
        if self.processing:
            logits = self.processing(scored, logits)
        if self.history is not None:
            self.history.record(scored, logits)
        if scored is not columns:
            logits = logits.take_along_dim((columns - scored[:, :1])[..., None], dim=1)
        return predict_tokens(
            logits,
            self.config.mask_token_id,
            self.config.temperature,
            self.config.top_k,
            self.config.top_p,
            [self._generators[row_id] for row_id in self.canvas.row_ids] if self._generators else None,
            [status.num_open for status in self.canvas.status],
            columns,
        )

    def _record_logprobs(self, prediction: TokenPrediction, change: Change) -> None:
        places = self.canvas.place.gather(1, prediction.columns)
        for row, row_id in enumerate(self.canvas.row_ids):
            if row_id in self._logprobs:
                written = change.accepted[row]
                logits = prediction.logits[row, written]
                self._logprobs[row_id].record(
                    places[row, written], change.tokens[row, written], logits, self.config.mask_token_id
                )

    def _decoded(self, row: FinishedRow) -> DecodedRow:
        self._forget(row.index)
        certainty = self.history.pop(row.index) if self.history is not None else {}
        seconds = time.perf_counter() - self._added_at.pop(row.index)
        return DecodedRow(**vars(row), **certainty, seconds=seconds, error=self._error(row))

    def _forget(self, row_id: int) -> None:
        """Drops what was kept for decoding a row that has left."""
        self._generators.pop(row_id, None)
        self._logprobs.pop(row_id, None)
        self.guides.discard(row_id)

    def _error(self, row: FinishedRow) -> Exception | None:
        if not row.is_nan:
            return None
        source = "logits processors" if self.processing else "model"
        return FloatingPointError(
            f"The logits of the {source} are NaN at step {row.nfe - 1} of row {row.index}. Check the weights and the "
            "dtype: float16 overflows in models trained in bfloat16, load those in bfloat16."
        )
