# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Emulates the serving engines SGLang and LMDeploy: the same tokens in the same passes.

Both decode a block to its end before they look for the end of the answer, and take one more pass to store it. They
pick the mask token like any other (https://docs.sglang.io, https://lmdeploy.readthedocs.io).
"""

from typing import Any

import torch

from hf_dparallel_rules.commit_rules import most_certain, rules_of_one_pass
from hf_dparallel_rules.settings import SETTINGS, THRESHOLD, SettingError, settings_called

from ..generation.canvas import RowState
from ..generation.compatibility import ABILITIES
from ..generation.configuration import DiffusionGenerationConfig
from ..generation.parts import Change, RowPart, part_of
from ..generation.prediction import TokenPrediction


ABILITIES["is_served"] = lambda model, value: value in getattr(model.config, "served_as", ())


# The tokens of a pass, where the engine writes them, both `(rows, tokens)`, and which rows leave their block.
_Step = tuple[torch.LongTensor, torch.BoolTensor, torch.BoolTensor]


class EngineBlocks(RowPart):
    """Stays in a block until the engine leaves it, and counts the passes that it computes the prompt in."""

    revises = True
    # Whether the mask token that the model predicts is decided again in the next pass.
    keeps_masks = False

    def __init__(self, config: DiffusionGenerationConfig):
        self.config = config

    @staticmethod
    def knows(config: DiffusionGenerationConfig, name: str) -> bool:
        """Returns whether the engine supports a setting that affects the decisions inside a block."""
        raise NotImplementedError

    def num_prefills(self, prompt_length: int) -> int:
        """Returns the number of passes before the first one that may decide a token."""
        raise NotImplementedError

    def enter(self, row_ids: list[int]) -> None:
        canvas = self.canvas
        for row in map(canvas.row_ids.index, row_ids):
            canvas.count_passes(row, self.num_prefills(canvas.prompt_lengths[row]))

    def change(self, prediction: TokenPrediction, change: Change) -> Change:
        tokens, written, is_over = self.step(prediction, change)
        is_mask = tokens == self.config.mask_token_id
        if self.keeps_masks:
            written &= ~(prediction.masked & is_mask)
        unsettled = (prediction.masked | prediction.revisable) & ~is_over[:, None]
        return Change(tokens, written, unsettled, taken_back=written & is_mask & ~prediction.masked)

    def step(self, prediction: TokenPrediction, change: Change) -> _Step:
        """Returns the step of the engine, given the prediction of a pass and the change of our commit rule."""
        raise NotImplementedError


class SGLang(EngineBlocks):
    """SGLang: `LowConfidence`, with editing `JointThreshold`, and with another rule that rule as a plug-in."""

    keeps_masks = True

    def __init__(self, config: DiffusionGenerationConfig):
        super().__init__(config)
        # The passes without a mask in the block, even where an edit has masked a token again.
        self.full_passes = RowState(0, is_wide=False)
        # By row, the past states of its blocks: a state that comes again would come again forever.
        self._states: dict[int, set] = {}

    @staticmethod
    def knows(config: DiffusionGenerationConfig, name: str) -> bool:
        if name in rules_of_one_pass():
            return name == "confidence_threshold" or not config.is_on("editing_threshold")
        return name in ("engine", "editing_threshold", "max_post_steps", "penalty_lambda")

    def num_prefills(self, prompt_length: int) -> int:
        return prompt_length // self.config.block_length

    def step(self, prediction: TokenPrediction, change: Change) -> _Step:
        canvas, config, columns, masked = self.canvas, self.config, prediction.columns, prediction.masked
        self.full_passes.value += ~masked.any(dim=1)
        is_over = self.full_passes.value > 0
        if not config.is_on("confidence_threshold"):
            return change.tokens, change.accepted, is_over
        logits = prediction.logits.float()
        if not config.is_on("editing_threshold"):
            return *low_confidence(logits, masked, config.confidence_threshold), is_over
        if config.is_on("penalty_lambda"):
            is_first = canvas.position_ids.gather(1, columns) % config.block_length == 0
            before = canvas.sequences.gather(1, (columns - 1).clamp(min=0))
            logits = without_repetition(logits, before, is_first, config.penalty_lambda)
        known = canvas.sequences.gather(1, columns)
        return joint_threshold(logits, known, masked, prediction.revisable, self.full_passes.value, config)

    def after(self, prediction: TokenPrediction, change: Change) -> None:
        canvas = self.canvas
        self.full_passes.value *= canvas.step_in_block > 0
        for row, (row_id, status) in enumerate(zip(canvas.row_ids, canvas.status, strict=True)):
            tokens = canvas.sequences[row, slice(*canvas.open_edges(row))]
            state = (status.open_from, self.full_passes.value[row].item(), *tokens.tolist())
            states = self._states.setdefault(row_id, set())
            if status.num_open and state in states:
                text = f"SGLang would decode row {row_id} forever: the model predicts the mask token in block"
                error = RuntimeError(f"{text} {status.open_from}. Lower `confidence_threshold`.")
                canvas.end_row(row, status.num_decided, error)
            states.add(state)

    def leave(self, row_id: int) -> dict[str, Any]:
        self._states.pop(row_id, None)
        return {}


def low_confidence(
    logits: torch.FloatTensor, masked: torch.BoolTensor, threshold: float
) -> tuple[torch.LongTensor, torch.BoolTensor]:
    """Returns the likeliest tokens, and which `masked` ones SGLang commits: those above the threshold, or the best."""
    confidence, tokens = logits.softmax(dim=-1).max(dim=-1)
    return tokens, masked & ((confidence > threshold) | most_certain(confidence, masked))


def without_repetition(
    logits: torch.FloatTensor, before: torch.LongTensor, is_first: torch.BoolTensor, weight: float
) -> torch.FloatTensor:
    """Lowers, by a weight, the logit of the token `before`, `(rows, tokens)`, except at the start of a block."""
    return logits.scatter_add(-1, before[..., None], (~is_first[..., None]).float() * -weight)


def joint_threshold(
    logits: torch.FloatTensor,
    known: torch.LongTensor,
    masked: torch.BoolTensor,
    editable: torch.BoolTensor,
    full_passes: torch.LongTensor,
    config: DiffusionGenerationConfig,
) -> _Step:
    """Runs a step of SGLang's editing on `known` tokens, of which some are `masked` and some `editable`.

    All are `(rows, tokens)`; `full_passes`, `(rows,)`, counts the passes without a mask.
    """
    confidence, tokens = logits.softmax(dim=-1).max(dim=-1)
    committed = masked & (confidence > config.confidence_threshold) | _best(confidence, masked, 1)
    edited = editable & (tokens != known) & (confidence > config.editing_threshold)
    may_write = masked.any(dim=1) | (full_passes <= config.max_post_steps)
    written = (committed | edited) & may_write[:, None]
    return tokens, written, ~written.any(dim=1)


class LMDeploy(EngineBlocks):
    """LMDeploy: a threshold, or `min_commits` tokens a pass by confidence or from the left."""

    @staticmethod
    def knows(config: DiffusionGenerationConfig, name: str) -> bool:
        if name == "denoising_steps":
            return config.denoising_steps == config.max_new_tokens
        if name == "confidence_threshold":
            return not config.is_on("min_commits")
        return name in ("engine", "min_commits", "commit_order", "do_sample", "temperature", "top_k", "top_p")

    def num_prefills(self, prompt_length: int) -> int:
        return int(prompt_length % self.config.block_length == 0)

    def step(self, prediction: TokenPrediction, change: Change) -> _Step:
        config, masked = self.config, prediction.masked
        logits = prediction.logits.float() / (config.temperature or 1)
        tokens = prediction.tokens if config.temperature else logits.argmax(dim=-1)
        confidence = logits.softmax(dim=-1).gather(-1, tokens[..., None])[..., 0]
        if config.is_on("confidence_threshold"):
            written = masked & (confidence >= config.confidence_threshold) | _best(confidence, masked, 1)
        else:
            from_left = config.commit_order == "left_to_right"
            order = -prediction.columns.float() if from_left else confidence
            written = _best(order, masked, config.min_commits)
        return tokens, written, ~masked.any(dim=1)

    def enter(self, row_ids: list[int]) -> None:
        super().enter(row_ids)
        # The canvas has ended rows at their end tokens: LMDeploy looks for these only in full blocks.
        self._find_ends()

    def after(self, prediction: TokenPrediction, change: Change) -> None:
        self._find_ends()

    def _find_ends(self) -> None:
        for row, status in enumerate(self.canvas.status):
            if not status.is_nan:
                self.canvas.keep_row(row)
                length = self._end(row) if status.num_open == 0 else None
                if length is not None:
                    self.canvas.end_row(row, length)

    def _end(self, row: int) -> int | None:
        """Returns the length of the answer if it ends in the open block, which must be full, or `None`."""
        canvas, answer = self.canvas, self.canvas.answer(row)
        start, end = canvas.open_edges(row)
        if end >= answer.stop:
            return canvas.status[row].longest
        # LMDeploy looks for no end token in a block that begins inside the prompt.
        tokens = canvas.sequences[row, start:end].tolist() if start >= answer.start else []
        ends = self.config.eos_token_ids if self.config.stop_at_eos else []
        return next((start - answer.start + place + 1 for place, token in enumerate(tokens) if token in ends), None)


def _best(scores: torch.FloatTensor, masked: torch.BoolTensor, count: int) -> torch.BoolTensor:
    """Returns the masked tokens with the `count` best scores; `topk` breaks ties, as in the engines."""
    best = scores.masked_fill(~masked, -torch.inf).topk(min(count, masked.shape[1])).indices
    return masked & torch.zeros_like(masked).scatter_(1, best, True)


_EMULATIONS = {"sglang": SGLang, "lmdeploy": LMDeploy}


def check_engine(config: DiffusionGenerationConfig) -> None:
    """Raises a [`SettingError`] for a setting that the engine of a resolved configuration does not support."""
    if config.engine == "sglang" and not any(map(config.is_on, settings_called(THRESHOLD))):
        remedy = "Set `confidence_threshold=0.95`, its default, or find one with `hf-dparallel calibrate`."
        raise SettingError("engine", "sglang", "needs a commit rule with a threshold", remedy)
    for name, value in config.non_defaults().items():
        is_known = SETTINGS[name].kind in ("length", "cache", "stopping")
        if config.is_on(name) and not is_known and not _EMULATIONS[config.engine].knows(config, name):
            remedy = f"{SETTINGS[name].way_without}, or {SETTINGS['engine'].way_without}."
            raise SettingError(name, value, f"is not supported by {config.engine}", remedy)


@part_of("engine")
def emulate(config: DiffusionGenerationConfig) -> EngineBlocks:
    """Returns the part that decodes as the engine does."""
    check_engine(config)
    return _EMULATIONS[config.engine](config)
