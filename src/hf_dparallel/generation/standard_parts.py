# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The parts of a decode that its settings and the arguments of `generate` ask for."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation.streamers import BaseStreamer

from hf_dparallel_rules.certainty import TokenPrediction, measure_certainty
from hf_dparallel_rules.settings import SettingError

from .canvas import Canvas
from .configuration import DiffusionGenerationConfig
from .output import HISTORIES, NUM_CANDIDATES
from .parts import Change, RowPart
from .revision.editing import Editing
from .revision.soft import SoftDecoding
from .revision.verified import VerifiedCommits


def make_parts(
    config: DiffusionGenerationConfig,
    logits_processor: LogitsProcessorList | None = None,
    stopping_criteria: StoppingCriteriaList | None = None,
    streamer: BaseStreamer | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> list[RowPart]:
    """Returns the parts that a resolved configuration and arguments of `generate` need, in calling order."""
    criteria = StoppingCriteriaList(stopping_criteria or [])
    if criteria and config.is_infilling:
        raise ValueError("`stopping_criteria` cannot be used for infilling (`max_new_tokens=0`). Remove them.")
    if config.stop_strings:
        if tokenizer is None:
            raise SettingError(
                "stop_strings", config.stop_strings, rule="needs the tokenizer", remedy="Pass `tokenizer=`."
            )
        criteria.append(StopTextCriteria(tokenizer, config.stop_strings, skip_special_tokens=False))
    processing = ScoreProcessing(config, logits_processor)
    wanted = [
        *(part(config) for part in (VerifiedCommits, Editing, SoftDecoding) if config.is_on(part.setting)),
        processing if processing else None,
        CertaintyHistory() if config.output_certainty else None,
        StopCheck(criteria) if criteria else None,
        DraftStream(streamer) if streamer is not None else None,
    ]
    return [part for part in wanted if part is not None]


class ScoreProcessing(RowPart):
    """Processes the scores of a pass: logits processors, and settings that keep tokens out.

    Processors of transformers know one position per row, so each position is passed as a row of its own, with the
    whole sequence of its row, without padding, as `input_ids`; the position itself is a mask there.
    """

    def __init__(self, config: DiffusionGenerationConfig, processors: LogitsProcessorList | None = None):
        self.config = config
        self.processors = LogitsProcessorList(processors or [])
        is_on = config.is_on("repetition_penalty")
        self.penalty = RepetitionPenaltyLogitsProcessor(config.repetition_penalty) if is_on else None
        self._banned = torch.tensor(config.suppress_tokens, dtype=torch.long)

    def __bool__(self) -> bool:
        return bool(self.processors or self.penalty or len(self._banned) or self.config.min_new_tokens)

    def scores(self, columns: torch.LongTensor, logits: torch.Tensor) -> torch.Tensor:
        config = self.config
        if len(self._banned):
            self._banned = self._banned.to(logits.device)  # copied once
            logits = logits.index_fill(-1, self._banned, -torch.inf)
        if config.min_new_tokens:
            is_early = (~self.canvas.is_given).cumsum(dim=1).gather(1, columns) <= config.min_new_tokens
            for token_id in config.eos_token_ids:
                logits[..., token_id] = logits[..., token_id].masked_fill(is_early, -torch.inf)
        # The caller's processors have the last word, as in transformers.
        if self.processors or self.penalty:
            logits = torch.stack([self._process(row, columns[row], scores) for row, scores in enumerate(logits)])
        return logits

    def _process(self, row: int, columns: torch.LongTensor, logits: torch.Tensor) -> torch.Tensor:
        canvas, mask_token_id = self.canvas, self.config.mask_token_id
        start = canvas.prompt_start(row)
        sequences = canvas.sequences[row, start:].expand(len(logits), -1)
        if canvas.revises:
            # A decided token is no repetition of itself. (Columns that only fill up a row may be padding.)
            inside = (columns - start).clamp(min=0)[:, None]
            sequences = sequences.scatter(1, inside, mask_token_id)
        scores = self.processors(sequences, logits.float())
        if self.penalty is not None:
            # A mask is no repetition, and its score is part of the certainty of the other tokens.
            of_mask = scores[:, mask_token_id]
            scores = self.penalty(sequences, scores)
            scores[:, mask_token_id] = of_mask
        return scores


class CertaintyHistory(RowPart):
    """Records the predictions of every masked token in every pass: the measures that commit rules decide by."""

    def __init__(self) -> None:
        self._passes: dict[int, list[dict[str, torch.Tensor]]] = {}

    def attach(self, model: PreTrainedModel, canvas: Canvas) -> None:
        super().attach(model, canvas)
        # Where passes compute more than the open blocks, and do not need what they decide.
        config = canvas.config
        is_cut_off = config.suffix_length is not None or config.cache_implementation == "dual"
        self.looks_ahead = model.attention == "full" and not is_cut_off

    def scores(self, columns: torch.LongTensor, logits: torch.Tensor) -> torch.Tensor:
        canvas = self.canvas
        certainty = measure_certainty(logits, canvas.config.mask_token_id)
        is_predicted = (canvas.masked if self.looks_ahead else canvas.is_open).gather(1, columns)
        # One row at a time: a copy of the logits of the whole canvas is large.
        likeliest = [self._likeliest(scores) for scores in logits]
        measured = {
            "entropies": certainty.entropy,
            "confidences": certainty.confidence,
            "candidates": torch.stack([of_row.indices for of_row in likeliest]),
            "candidate_probabilities": torch.stack([of_row.values for of_row in likeliest]),
        }
        recorded = {"standing": canvas.sequences.masked_fill(canvas.masked, -1)}
        for name, values in measured.items():
            fill, shape = HISTORIES[name]
            index, is_known = (each.view(*each.shape, *(1 for _ in shape)) for each in (columns, is_predicted))
            recorded[name] = values.new_full((*canvas.sequences.shape, *shape), fill)
            recorded[name].scatter_(1, index.expand_as(values), values.where(is_known, fill))
        for row, row_id in enumerate(canvas.row_ids):
            answer = canvas.answer(row)
            self._passes.setdefault(row_id, []).append({name: of[row, answer] for name, of in recorded.items()})
        return logits

    def _likeliest(self, logits: torch.Tensor) -> Any:
        probabilities = torch.softmax(logits, dim=-1, dtype=torch.float32)
        probabilities[:, self.canvas.config.mask_token_id] = 0
        return probabilities.topk(min(NUM_CANDIDATES, logits.shape[-1] - 1), dim=-1)

    def leave(self, row_id: int) -> dict[str, torch.Tensor]:
        passes = self._passes.pop(row_id, [])
        return {name: torch.stack([recorded[name] for recorded in passes]) for name in HISTORIES if passes}


class StopTextCriteria(StoppingCriteria):
    """Holds when the text of the answer, without the prompt, contains one of the non-empty strings.

    `StopStringCriteria` of transformers fails for tokenizers whose tokens do not add up to it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, strings: Sequence[str], skip_special_tokens: bool = True):
        self.tokenizer = tokenizer
        self.strings = [text for text in strings if text]
        self.skip_special_tokens = skip_special_tokens

    def __call__(self, input_ids: torch.LongTensor, scores, answer_start: int = 0, **kwargs) -> torch.BoolTensor:
        texts = self.tokenizer.batch_decode(input_ids[:, answer_start:], skip_special_tokens=self.skip_special_tokens)
        return torch.tensor([any(stop in text for stop in self.strings) for text in texts], device=input_ids.device)

    def cut(self, tokens: list[int]) -> list[int]:
        """Returns the tokens up to and including the first one at which the criterion holds."""
        ids = torch.tensor([tokens])
        return next((tokens[:end] for end in range(1, len(tokens) + 1) if self(ids[:, :end], None)), tokens)


class StopCheck(RowPart):
    """Ends the answers for which a stopping criterion holds.

    Criteria look at the end of a sequence, so they are called for every newly decided token, even when several were
    committed in one pass, with the row without its padding.
    """

    def __init__(self, criteria: StoppingCriteriaList):
        self.criteria = criteria
        # By row, the number of tokens that have been checked.
        self._checked: dict[int, int] = {}

    def after(self, prediction: TokenPrediction, change: Change) -> None:
        canvas = self.canvas
        for row, (row_id, status) in enumerate(zip(canvas.row_ids, canvas.status, strict=True)):
            sequence = canvas.sequences[row : row + 1, canvas.prompt_start(row) :]
            # Where the answer begins, for criteria that must not look at the prompt.
            start = canvas.answer(row).start - canvas.prompt_start(row)
            lengths = range(self._checked.get(row_id, 0) + 1, min(status.num_final, status.length) + 1)
            self._checked[row_id] = status.num_final
            holds = [self.criteria(sequence[:, : start + end], None, answer_start=start).all() for end in lengths]
            # Waits for the device once per row, however many tokens it has decided.
            if holds and True in (stops := torch.stack(holds).tolist()):
                canvas.end_row(row, lengths[stops.index(True)])

    def leave(self, row_id: int) -> dict:
        self._checked.pop(row_id, None)
        return {}


class DraftStream(RowPart):
    """Feeds a streamer: tokens that are final, in order, and a draft of the rest of the block if it takes drafts."""

    def __init__(self, streamer: BaseStreamer):
        self.streamer = streamer
        # Tokens of the answer that have been sent.
        self._sent = 0

    def enter(self, row_ids: list[int]) -> None:
        """Sends the prompt, which must be the only one; when infilling, nothing yet."""
        canvas = self.canvas
        if len(canvas) > 1:
            text = f"`streamer` works with one prompt only, got a batch of {len(canvas)}."
            raise ValueError(f"{text} Call `generate` for each, with `num_return_sequences=1`.")
        self.streamer.put(canvas.sequences[:, : canvas.answer(0).start].cpu())

    def after(self, prediction: TokenPrediction, change: Change) -> None:
        canvas, status = self.canvas, self.canvas.status[0]
        decided = min(status.num_final, status.length)
        if decided > self._sent:
            self.streamer.put(status.answer[self._sent : decided])
            self._sent = decided
        if hasattr(self.streamer, "put_draft") and not status.is_finished:
            # With a single row, no column is there only to fill it up.
            row, columns, masked = canvas.sequences[0], prediction.columns[0], canvas.masked[0]
            guess = row.scatter(0, columns, torch.where(masked[columns], prediction.tokens[0], row[columns]))
            # In a block that was entered in this pass nothing has been predicted yet.
            guess = guess.masked_fill(masked.scatter(0, columns, False), -1)
            answer = canvas.answer(0)
            draft = guess[answer.start + decided : min(canvas.open_edges(0)[1], answer.stop)].cpu()
            if len(draft := draft[draft >= 0]):
                self.streamer.put_draft(value=draft)
