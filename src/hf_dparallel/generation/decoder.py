# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The decoding loop: one pass after the other over the rows of a canvas."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from . import commit_rules
from .canvas import Canvas, FinishedRow, RowProgress
from .configuration import DiffusionGenerationConfig
from .forward import CachedForward, CanvasForward
from .prediction import TokenPrediction, predict_tokens
from .progress import CertaintyHistory, DraftStream, StopCheck


# Few widths to compile, and little padding.
_COMPILED_WIDTH_MULTIPLE = 64


@dataclass
class DecodedRow(FinishedRow):
    """A finished row with its certainty history, or with what went wrong in it.

    Args:
        entropies, confidences (`torch.FloatTensor` of shape `(nfe, max_new_tokens)`, *optional*), candidates,
        candidate_probabilities (of shape `(nfe, max_new_tokens, 5)`, *optional*): as in
            [`DiffusionGenerationOutput`].
        seconds (`float`): wall-clock time from the row's entry into the batch to its end, other rows' share included.
        error (`Exception`, *optional*): why the row was not decoded to its end.
    """

    entropies: torch.FloatTensor | None = None
    confidences: torch.FloatTensor | None = None
    candidates: torch.LongTensor | None = None
    candidate_probabilities: torch.FloatTensor | None = None
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
        self.canvas = Canvas(
            max_new_tokens=config.max_new_tokens,
            block_length=config.block_length,
            mask_token_id=config.mask_token_id,
            pad_token_id=config.padding_token_id,
            eos_token_ids=config.eos_token_ids,
            stop_at_eos=config.stop_at_eos,
            max_active_blocks=config.max_active_blocks,
            block_add_threshold=config.block_add_threshold,
            width_multiple=_COMPILED_WIDTH_MULTIPLE if config.compiles else 1,
        )
        self.forward = make_forward(model, self.canvas, config)
        self.logits_processor = LogitsProcessorList(logits_processor or [])
        self.stop_check = StopCheck(self.canvas, stopping_criteria) if stopping_criteria else None
        self.stream = DraftStream(self.canvas, streamer) if streamer is not None else None
        self.history = CertaintyHistory(self.canvas) if config.output_certainty else None
        self.generator_for = generator_for
        self._generators: dict[int, torch.Generator] = {}
        self._added_at: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self.canvas)

    def add(self, row_ids: list[int], input_ids: torch.LongTensor, attention_mask: torch.LongTensor) -> None:
        """Adds left-padded prompts, both `(rows, prompt_length)`, under numbers that are not in use."""
        self._added_at |= dict.fromkeys(row_ids, time.perf_counter())
        self.canvas.add(row_ids, input_ids, attention_mask)
        if self.generator_for is not None:
            self._generators |= {row_id: self.generator_for(row_id) for row_id in row_ids}
        if self.stream is not None:
            self.stream.start()

    def add_prompts(self, prompts: Mapping[int, torch.LongTensor]) -> None:
        """Adds prompts of any lengths, `(prompt_length,)` each, by numbers that are not in use."""
        ids, is_prompt = (
            pad_sequence(rows, batch_first=True, padding_side="left")
            for rows in (list(prompts.values()), [torch.ones_like(ids) for ids in prompts.values()])
        )
        self.add(list(prompts), ids, is_prompt)

    def progress(self) -> dict[int, RowProgress]:
        """How far each row has come, by its number."""
        return self.canvas.progress()

    def remove(self, row_ids: Collection[int]) -> None:
        """Gives up rows that are not finished. The others go on as if these had never been there."""
        self.canvas.remove(row_ids)
        for row_id in row_ids:
            del self._added_at[row_id]
            self._generators.pop(row_id, None)
            if self.history is not None:
                self.history.discard(row_id)

    def step(self) -> list[DecodedRow]:
        """Runs one pass, and returns the rows that are finished after it."""
        # Infilling can meet a prompt without masks.
        finished = self.canvas.take_finished()
        if self.canvas:
            self._run_pass()
            finished += self.canvas.take_finished()
        return [self._decoded(row) for row in finished]

    def _run_pass(self) -> None:
        # Predict the masked tokens of each row's open blocks.
        columns, masked = self.canvas.open_columns()
        prediction = self._predict(columns, masked)
        # Pick the predictions to commit, by the commit rule; at least one in each row.
        accepted = self._pick_commits(prediction, masked)
        # Write them into the canvas.
        self.canvas.commit(columns, prediction.tokens, accepted)
        # Move on: a row whose block is decided enters its next block, a row whose answer has ended leaves.
        self.canvas.advance((masked & prediction.entropy.isnan()).any(dim=1))
        if self.stop_check is not None:
            self.stop_check.update()
        if self.stream is not None:
            self.stream.update(columns, masked, prediction.tokens)

    def _predict(self, columns: torch.LongTensor, masked: torch.BoolTensor) -> TokenPrediction:
        """Runs the model and predicts the tokens at `columns`, `(rows, columns)`."""
        if self.history is None:
            logits = self.forward.logits(columns)
        else:
            everywhere = self.canvas.new_columns()
            logits = self.forward.logits(everywhere)
            self.history.record(everywhere, logits)
            logits = logits.take_along_dim((columns - everywhere[:, :1])[..., None], dim=1)
        if self.logits_processor:
            logits = self._process(logits)
        return predict_tokens(
            logits,
            self.config.mask_token_id,
            self.config.temperature,
            self.config.top_k,
            self.config.top_p,
            [self._generators[row_id] for row_id in self.canvas.row_ids] if self._generators else None,
            [status.num_open for status in self.canvas.status],
        )

    def _process(self, logits: torch.Tensor) -> torch.Tensor:
        """Processors know one position per row, so each position of the block is passed as a row of its own."""
        rows, tokens, vocab_size = logits.shape
        input_ids = self.canvas.sequences.repeat_interleave(tokens, dim=0)
        scores = logits.float().reshape(rows * tokens, vocab_size)
        return self.logits_processor(input_ids, scores).view(rows, tokens, vocab_size)

    def _pick_commits(self, prediction: TokenPrediction, masked: torch.BoolTensor) -> torch.BoolTensor:
        """Applies the commit rule that is set."""
        config = self.config
        if config.entropy_threshold is not None:
            return commit_rules.commit_by_entropy(prediction.entropy, masked, config.entropy_threshold)
        if config.confidence_threshold is not None:
            return commit_rules.commit_by_confidence(prediction.confidence, masked, config.confidence_threshold)
        if config.entropy_bound is not None:
            return commit_rules.commit_by_entropy_bound(prediction.entropy, masked, config.entropy_bound)
        if config.confidence_factor is not None:
            return commit_rules.commit_by_confidence_factor(prediction.confidence, masked, config.confidence_factor)
        step = self.canvas.step_in_block
        count = commit_rules.scheduled_count(config.block_length, config.steps_per_block, step)
        return commit_rules.commit_by_count(prediction.confidence, masked, count)

    def _decoded(self, row: FinishedRow) -> DecodedRow:
        self._generators.pop(row.index, None)
        certainty = self.history.take(row.index) if self.history is not None else {}
        seconds = time.perf_counter() - self._added_at.pop(row.index)
        return DecodedRow(**vars(row), **certainty, seconds=seconds, error=self._error(row))

    def _error(self, row: FinishedRow) -> Exception | None:
        if not row.is_nan:
            return None
        source = "logits processors" if self.logits_processor else "model"
        return FloatingPointError(
            f"The logits of the {source} are NaN at step {row.nfe - 1} of row {row.index}. Check the weights and the "
            "dtype: float16 overflows in models trained in bfloat16, load those in bfloat16."
        )


def make_forward(model: PreTrainedModel, canvas: Canvas, config: DiffusionGenerationConfig) -> CanvasForward:
    """The forward pass that the settings ask for.

    Raises:
        ValueError: if a cache or compilation is asked for, and the model is not one of this package.
    """
    compile_config = config.compile_config if config.compiles else None
    if not model._supports_window_cache and (config.cache_implementation or compile_config):
        name = "cache_implementation" if config.cache_implementation else "compile_config"
        raise ValueError(
            f"`{name}={getattr(config, name)!r}` needs a model of this package (LLaDA, Dream), and this is a "
            f"{type(model).__name__}. Leave it out."
        )
    if config.cache_implementation is None:
        return CanvasForward(model, canvas, compile_config)
    return CachedForward(
        model,
        canvas,
        compile_config,
        suffix_is_cached=config.cache_implementation == "dual",
        refresh_interval=config.cache_refresh_interval,
    )
