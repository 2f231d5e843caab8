# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Decoding of autoregressive models by windows of masks: these propose tokens, which causal logits verify.

A pass computes the tokens that the last pass proposed, causally and without the adapter, and after them masks, with
the adapter. The proposals that agree with the model's own tokens are committed, and its own next token with them. If
all agree, the masks' predictions are the next proposals, up to the first that the commit rule would not commit; else
nothing is proposed, since the masks have seen a rejected token.
Self-speculative decoding with mask tokens is from https://huggingface.co/papers/2507.11851.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import LogitsProcessorList, PreTrainedModel

from hf_dparallel_rules.certainty import TokenPrediction, measure_certainty

from ..generation.canvas import Canvas
from ..generation.configuration import DiffusionGenerationConfig
from ..generation.decoder import Decoder
from ..generation.hooks.base import Change, DecodingHook
from ..generation.hooks.processing import ScoreProcessing
from ..generation.inputs import vocabulary_size
from ..generation.layout import Layout
from ..generation.plan import Pass, Planner, known_and_new
from .gate import gate_adapters
from .gated_pass import acting_at


class WindowPlanner(Planner):
    """Computes the tokens that the cache lacks, the proposed tokens after them, and masks that propose further ones.

    Decided and proposed tokens are causal and stored, so they verify the proposals and are the cache of the next pass.
    What a pass stores of rejected tokens and masks is seen by nobody, and replaced by the tokens that come there.
    Scores are those of the open tokens of each row, and then of what its masks propose.
    """

    def __init__(self, canvas: "WindowCanvas", model: PreTrainedModel):
        super().__init__(canvas, model)
        self.canvas: WindowCanvas = canvas
        # Where the first mask that proposes a token stands: one that scores its own place has the next token before.
        self.first_mask = int(not model.shift_logits)
        self.is_cached = canvas.config.cache_implementation != "none"
        # By row id, how many columns at its right end the cache lacks.
        self._missing: dict[int, int] = {}

    def plan(self, wanted: torch.LongTensor) -> list[Pass]:
        canvas = self.canvas
        scored = self._scored(wanted)
        # The last open token is predicted where the first mask stands.
        num_after = canvas.num_masks - 1

        passes = []
        for rows in known_and_new(canvas.row_ids, self._missing):
            starts = [self._first_computed(row) for row in rows]
            passes += self.up_to_open_blocks(rows, starts, scored, num_after)
        # Scored places are those of the hidden states.
        return [each._replace(predicting_columns=each.columns - each.columns[:, :1]) for each in passes]

    def note(self) -> None:
        canvas = self.canvas
        canvas.written.clear()
        self._missing = {}
        for row, row_id in enumerate(canvas.row_ids):
            start = max(canvas.open_edges(row)[1] - 1, canvas.prompt_start(row))
            self._missing[row_id] = canvas.width - start

    def _first_computed(self, row: int) -> int:
        canvas = self.canvas
        row_id = canvas.row_ids[row]
        if not self.is_cached:
            return 0
        first_open = canvas.open_edges(row)[0]
        if row_id in canvas.written:
            # The last token before those that were written may replace a proposal, too.
            first_open = canvas.answer(row).start + canvas.written[row_id]
        whole = canvas.width - canvas.prompt_start(row)
        return min(canvas.width - self._missing.get(row_id, whole), first_open - 1)

    def _scored(self, wanted: torch.LongTensor) -> torch.LongTensor:
        """Returns the columns before the open tokens of each row, and then those of the masks that propose more."""
        canvas = self.canvas
        masks = (canvas.block < canvas.open_to[:, None]).sum(dim=1, keepdim=True) + self.first_mask
        masks = masks + canvas.column_ids[: max(canvas.num_masks - self.first_mask, 0)]
        before = wanted[:, :1] - 1 + canvas.column_ids[: wanted.shape[1]]
        return torch.cat([before, masks], dim=1)


class WindowCanvas(Canvas):
    """Rows of a model with a causal past. The open blocks are the next token and those that are proposed after it.

    After them stand `num_masks` masks, which propose further tokens.
    """

    def __init__(self, config: DiffusionGenerationConfig, attention: str, num_masks: int):
        # Every token is a block of its own, and the last window has room.
        super().__init__(config, attention, layout=Layout(config.max_new_tokens, 1, False, 2 * config.block_length))
        self.num_masks = num_masks
        # The proposed tokens, the mask token elsewhere.
        self.proposals = self.row_tensor(config.mask_token_id)
        # By row id, the first token of the answer that was written after the last pass.
        self.written: dict[int, int] = {}

    def write(self, row: int, number: int, tokens: list[int]) -> None:
        super().write(row, number, tokens)
        if tokens:
            self.written[self.row_ids[row]] = number

    def input_ids(self) -> torch.LongTensor:
        return self.sequences.where(~self.masked, self.proposals.value)

    def is_mask(self) -> torch.BoolTensor:
        return self.block >= self.open_to[:, None]

    def mask_blocks(self) -> torch.LongTensor:
        # Decided and proposed tokens are causal. Masks see these and one another, and none that are left over.
        first = self.open_to[:, None]
        return self.block.minimum(first) + (self.block >= first + self.num_masks).long()

    def _last_open(self, first: torch.LongTensor) -> torch.LongTensor:
        return first + (self.proposals.value != self.config.mask_token_id).sum(dim=1)


class CausalScores(ScoreProcessing):
    """Processes scores as one token at a time would: processors never see a token that is not decided.

    `pick` returns the token at an open place of a row, by its scores, `(1, vocab_size)`.
    """

    def __init__(self, processing: ScoreProcessing, pick: Callable[[int, int, torch.Tensor], torch.Tensor]):
        super().__init__(processing.config)
        self.pick = pick
        self.processors = processing.processors
        # As in transformers, whose list ends with the caller's.
        self.in_order = LogitsProcessorList([self.penalty] if self.penalty else [])
        self.in_order += self.processors

    def _process(self, row: int, columns: torch.LongTensor, logits: torch.Tensor) -> torch.Tensor:
        canvas, scores = self.canvas, logits.float().clone()
        sequence = canvas.input_ids()[row, canvas.prompt_start(row) :]
        first = canvas.open_edges(row)[0] - canvas.prompt_start(row)
        for place in range(canvas.status[row].num_open):
            length = first + place
            # Processors know the vocabulary of the model, without a mask token after it.
            of_words = scores[place : place + 1, : vocabulary_size(self.model)]
            of_words.copy_(self.in_order(sequence[None, :length], of_words))
            token = int(self.pick(row, place, scores[place : place + 1]))
            if token != sequence[length] or (self.config.stop_at_eos and token in self.config.eos_token_ids):
                break
        return scores


class WindowDecoder(Decoder):
    """Decodes rows of a model with a causal past by windows of masks, which begin wherever a row stands.

    With `exact=True` masks propose and the causal logits verify; else what the masks propose is committed. With a
    generator the draws of a verified row are the ones of one token at a time, and so is the state that is left.
    """

    canvas: WindowCanvas

    def __init__(
        self, model: PreTrainedModel, config: DiffusionGenerationConfig, hooks: Sequence[DecodingHook], *args: Any
    ):
        if config.exact:
            hooks = [CausalScores(hook, self._pick) if isinstance(hook, ScoreProcessing) else hook for hook in hooks]
        super().__init__(model, config, hooks, *args)
        if gate_adapters(model):
            self.runner.gate = acting_at

    def _make_canvas(self) -> WindowCanvas:
        config, model = self.config, self.model
        # One token in each pass needs no masks.
        is_plain = config.commit_rule() in (None, "denoising_steps") or config.block_length == 1
        num_masks = 0 if is_plain else config.block_length - int(model.shift_logits)
        # The noise of the open places of all rows, `(rows, places, vocab_size)`, with `temperature > 0`.
        self._drawn: torch.Tensor | None = None
        # By row, the generator that it shares with no other, and the states of that before and after each draw.
        self._states: dict[int, tuple[torch.Generator, list[torch.Tensor]]] = {}
        return WindowCanvas(config, model.attention, num_masks)

    def _make_planner(self) -> WindowPlanner:
        return WindowPlanner(self.canvas, self.model)

    def _run_pass(self) -> None:
        canvas = self.canvas
        columns, is_open = canvas.open_columns()
        logits = self._with_mask(self.runner.logits(columns))
        # Hooks may write more before the tokens of the pass are.
        self.planner.note()
        if self.config.exact:
            prediction, change = self._verify(columns, is_open, logits)
        else:
            prediction, change = self._accept(columns, logits)
        canvas.commit(prediction.columns, *change)
        num_decided = [status.num_decided for status in canvas.status]
        canvas.advance((prediction.masked & prediction.entropy.isnan()).sum(dim=1))
        for hook in self.hooks:
            hook.after(prediction, change)
        if self._states:
            # Only the tokens of the answer have drawn: the others draw again when their turn comes.
            num_accepted = change.commits.sum(dim=1).tolist()
            for row, (generator, states) in self._states.items():
                generator.set_state(states[min(num_accepted[row], canvas.status[row].length - num_decided[row])])
            self._states = {}

    def _with_mask(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns scores with those of a mask token after the vocabulary, which has none."""
        num_missing = self.config.mask_token_id + 1 - logits.shape[-1]
        return pad(logits, (0, num_missing), value=-torch.inf) if num_missing > 0 else logits

    def _verify(
        self, columns: torch.LongTensor, is_open: torch.BoolTensor, logits: torch.Tensor
    ) -> tuple[TokenPrediction, Change]:
        """Returns the model's own tokens, and the change up to the first that was not proposed.

        Proposes further tokens in rows of which all proposals are the model's own tokens.
        """
        canvas, count = self.canvas, columns.shape[1]
        prediction = self._predict_causal(columns, is_open, logits[:, :count])
        prediction.masked = is_open
        agrees = is_open & (prediction.tokens == canvas.proposals.value.gather(1, columns))
        num_agreeing = agrees.cumprod(dim=1).sum(dim=1, keepdim=True)
        change = Change(prediction.tokens, is_open & (canvas.column_ids[:count] <= num_agreeing))
        for hook in self.hooks:
            change = hook.change(prediction, change)
        is_clean = num_agreeing == is_open.sum(dim=1, keepdim=True) - 1
        self._propose(logits[:, count:], columns[:, :1] + num_agreeing + 1, is_clean)
        return prediction, change

    def _accept(self, columns: torch.LongTensor, logits: torch.Tensor) -> tuple[TokenPrediction, Change]:
        """Returns the predictions of a pass, and the change up to the first that the commit rule does not commit."""
        canvas, count = self.canvas, logits.shape[1]
        columns = columns + canvas.column_ids[:count]
        masked = canvas.block.gather(1, columns) < canvas.layout.max_new_tokens
        prediction = self._sample(columns, self._processed(columns, masked, logits), [count] * len(columns))
        prediction.masked = masked
        is_sure = self.rule(prediction, masked) | (canvas.column_ids[:count] == 0)
        return prediction, Change(prediction.tokens, masked & is_sure.cumprod(dim=1).bool())

    def _predict_causal(
        self, columns: torch.LongTensor, is_open: torch.BoolTensor, logits: torch.Tensor
    ) -> TokenPrediction:
        """Predicts the tokens of the open places as one token at a time would."""
        for generator, states in self._states.values():
            # A pass was interrupted after it had drawn.
            generator.set_state(states[0])
        self._drawn, self._states = None, {}
        if self.config.temperature > 0:
            self._drawn = torch.ones_like(logits, dtype=torch.float32)
            is_cuda = logits.device.type == "cuda"
            of_torch = torch.cuda.default_generators[logits.device.index] if is_cuda else torch.default_generator
            generators = [self.generators.get(row_id, of_torch) for row_id in self.canvas.row_ids]
            for row, (generator, status) in enumerate(zip(generators, self.canvas.status, strict=True)):
                states = [generator.get_state()]
                for place in range(status.num_open):
                    noise = self._drawn[row, place, : vocabulary_size(self.model)]
                    noise.exponential_(generator=generator if self.generators else None)
                    states.append(generator.get_state())
                if generators.count(generator) == 1:
                    self._states[row] = generator, states
        return self._sample(columns, self._processed(columns, is_open, logits), noise=self._drawn)

    def _pick(self, row: int, place: int, scores: torch.Tensor) -> torch.Tensor:
        """Returns the token at an open place of a row, by its scores, `(1, vocab_size)`."""
        noise = None if self._drawn is None else self._drawn[row : row + 1, place : place + 1]
        return self._sample(None, scores[None], noise=noise).tokens

    def _propose(self, logits: torch.Tensor, first: torch.LongTensor, is_clean: torch.BoolTensor) -> None:
        """Writes what masks propose for the columns `first` and after, in rows without a rejection."""
        canvas, mask_token_id = self.canvas, self.config.mask_token_id
        if not logits.shape[1]:
            return
        order = canvas.column_ids[: logits.shape[1]]
        proposed = measure_certainty(logits, mask_token_id)
        proposed.columns = first + order
        is_sure = self.rule(proposed, torch.ones_like(proposed.tokens, dtype=torch.bool)).cumprod(dim=1).bool()
        # The last token of the answer is never proposed: the pass that verifies the one before it predicts it.
        room = canvas.layout.max_new_tokens - 1 - canvas.block.gather(1, first)
        is_proposed = is_sure & is_clean & (order < room)
        tokens = proposed.tokens.where(is_proposed, mask_token_id)
        empty = torch.full_like(canvas.sequences, mask_token_id)
        canvas.proposals.value = empty.scatter(1, proposed.columns, tokens)
