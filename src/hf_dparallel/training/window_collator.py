# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Windows of masks at random places of an answer, as decoding by an autoregressive model meets them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from hf_dparallel_rules.settings import SettingError

from ..attention_masks import Visibility, block_causal, make_attention_mask
from ..exact.gate import gate_adapters
from ..exact.gated_pass import acting_at
from .collator import DataCollatorForSemiAutoregressiveMasking
from .objective import IGNORE_INDEX, RowTerms, TokenTerms, mean_by_row


# The weight of a mask in the loss, as a part of the weight of the mask before it: the best of four (docs/exact.md).
_DECAY = 0.8


@dataclass
class WindowCollator(DataCollatorForSemiAutoregressiveMasking):
    r"""
    Data collator for autoregressive models with a causal past: `block_length - 1` masks follow a random token of the
    prompt's end or of the answer, and each predicts the token after its place.

    A row has one window for every `block_length - 1` tokens of its answer, at different places. A window sees the
    tokens before it, which are computed once for all windows of the row, and itself. All its tokens are masked, so
    there is one view, and `mask_ratio`, `masking` and `complementary_masking` have no meaning.

    Args:
        mask_token_id, eos_token_id, settings:
            As in [`DataCollatorForSemiAutoregressiveMasking`].
    """

    # The keys and values of the tokens before the windows, which activation checkpointing would drop.
    trains_with_cache = True

    def __post_init__(self):
        self.complementary_masking = False
        super().__post_init__()
        if self.block_length == 1:
            raise SettingError(
                "block_length", 1, rule="must be at least 2 for a causal past: 1 leaves no mask to learn"
            )

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        r"""
        Masks and batches `examples`.

        Returns:
            `dict` of `torch.LongTensor`s. Of shape `(len(examples), num_masks)`: `input_ids`, all masks;
            `position_ids`; `window_start`, the position at which the window of each mask begins; `labels`, -100 after
            the end of the answer; `weights` of the loss. Of shape `(len(examples), length)`: `past_ids`, the tokens,
            padded on the right.
        """
        rows = [self._draw_windows(example) for example in examples]
        lengths = torch.tensor([[len(tokens)] for tokens, _ in rows])
        past_ids = pad_sequence([tokens for tokens, _ in rows], batch_first=True, padding_value=self.eos_token_id)
        # Rows with fewer windows have some behind their end, which predict nothing.
        length = past_ids.shape[1]
        starts = pad_sequence([starts for _, starts in rows], batch_first=True, padding_value=length)

        size = self.block_length - 1
        window_start = starts.repeat_interleave(size, dim=1)
        offsets = torch.arange(size).repeat(starts.shape[1])
        position_ids = window_start + offsets

        predicted = position_ids + 1
        labels = past_ids.gather(1, predicted.clamp(max=length - 1))
        return {
            "input_ids": torch.full_like(position_ids, self.mask_token_id),
            "position_ids": position_ids,
            "window_start": window_start,
            "labels": labels.masked_fill(predicted >= lengths, IGNORE_INDEX),
            # A prediction is of use only if all before it in its window are right (https://huggingface.co/papers/2606.11552).
            "weights": _DECAY ** offsets.expand_as(position_ids),
            "past_ids": past_ids,
        }

    def _draw_windows(self, example: dict[str, Any]) -> tuple[torch.LongTensor, torch.LongTensor]:
        """Returns the tokens of a row, and the positions at which its windows begin."""
        prompt, completion, _ = self.read_row(example)
        num_windows = -(-len(completion) // (self.block_length - 1))
        # A window that begins at the last token has nothing to predict.
        num_places = max(len(completion) - 1, 1)
        places = torch.randperm(num_places, generator=self.generator_of(prompt, completion))
        return torch.cat([prompt, completion]), len(prompt) + places[:num_windows]

    def score(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Scores a batch of this collator, see [`score_windows`]."""
        return score_windows(model, inputs, *args, **kwargs)

    def average(self, terms: TokenTerms, batch: dict[str, Any]) -> RowTerms:
        """Returns the weighted terms of each row."""
        return mean_by_row(terms, batch["labels"], batch["weights"])


def score_windows(
    model: PreTrainedModel,
    inputs: dict[str, torch.Tensor],
    where: torch.Tensor,
    function: Callable[..., Any] | None = None,
    labels: torch.LongTensor | None = None,
    forward: Callable[..., Any] | None = None,
) -> Any:
    """Returns what the head makes of masks, in a pass whose cache has the tokens before them ([`WindowCollator`]).

    The tokens are computed causally, without the adapter and without gradients; only masks have a backward pass.
    """
    if forward is None:
        forward = model
    past_ids = inputs["past_ids"]
    window_start = inputs["window_start"]
    rows, num_masks = window_start.shape
    length = past_ids.shape[1]
    device = window_start.device
    positions = torch.arange(length, device=device).expand(rows, -1)

    def attention_mask(is_visible: Visibility, queries: int, keys: int) -> dict[str, Any]:
        shape = (rows, queries, keys)
        mask = make_attention_mask(model.config, is_visible, shape, dtype=model.dtype, device=device)
        return {"full_attention": mask}

    def sees(row, head, query, key):
        # Tokens before the window, and its own masks, whose keys come after all tokens.
        start = torch.cat([positions, window_start], dim=1)[row, key]
        return torch.where(key < length, start < window_start[row, query], start == window_start[row, query])

    cache = DynamicCache(config=model.config)
    gate_adapters(model)
    with torch.no_grad(), acting_at(None):
        forward(
            input_ids=past_ids,
            position_ids=positions,
            attention_mask=attention_mask(block_causal(positions, positions), length, length),
            past_key_values=cache,
            logits_to_keep=1,
        )

    with acting_at(torch.ones(1, 1, dtype=torch.bool, device=device)):
        return forward(
            input_ids=inputs["input_ids"],
            position_ids=inputs["position_ids"],
            attention_mask=attention_mask(sees, num_masks, length + num_masks),
            past_key_values=cache,
            # Each mask predicts the token after its place, which is where its label stands.
            predicting_columns=torch.arange(num_masks, device=device).expand(rows, -1),
            logits_to_keep=where,
            labels=labels,
            head_function=function,
        ).logits
