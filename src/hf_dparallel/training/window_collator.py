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

from ..attention_masks import block_causal, make_attention_mask
from ..exact.gate import MaskGate, gate_adapters
from .collator import DataCollatorForSemiAutoregressiveMasking
from .objective import IGNORE_INDEX


# The weight of a mask in the loss, as a part of the weight of the mask before it.
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
            `position_ids`; `window`, the position at which the window of each mask begins; `labels`, -100 after the
            end of the answer; `weights` of the loss. Of shape `(len(examples), length)`: `past_ids`, the tokens,
            padded on the right.
        """
        past_ids, starts = zip(*map(self._windows, examples), strict=True)
        lengths = torch.tensor([len(ids) for ids in past_ids])[:, None]
        past_ids = pad_sequence(list(past_ids), batch_first=True, padding_value=self.eos_token_id)
        # Rows with fewer windows have some behind their end, which predict nothing.
        window = pad_sequence(list(starts), batch_first=True, padding_value=past_ids.shape[1])
        window = window.repeat_interleave(self.block_length - 1, dim=1)
        offsets = torch.arange(self.block_length - 1).repeat(window.shape[1] // (self.block_length - 1))
        position_ids = window + offsets
        predicted = position_ids + 1
        labels = past_ids.gather(1, predicted.clamp(max=past_ids.shape[1] - 1))
        return {
            "input_ids": torch.full_like(window, self.mask_token_id),
            "position_ids": position_ids,
            "window": window,
            "labels": labels.masked_fill(predicted >= lengths, IGNORE_INDEX),
            # A prediction is of use only if all before it in its window are right (https://huggingface.co/papers/2606.11552).
            "weights": _DECAY ** offsets.expand_as(window),
            "past_ids": past_ids,
        }

    def score(self, model, *args, **kwargs):
        """Scores a batch of this collator, see [`score_windows`]."""
        return score_windows(model, *args, **kwargs)

    def _windows(self, example: dict[str, Any]) -> tuple[torch.LongTensor, torch.LongTensor]:
        """Returns the tokens of a row, and the positions at which its windows begin."""
        prompt, completion, _ = self.read_row(example)
        size = self.block_length - 1
        # A window that begins at the last token has nothing to predict.
        num_places = max(len(completion) - 1, 1)
        places = torch.randperm(num_places, generator=self._generator(prompt, completion))
        return torch.cat([prompt, completion]), len(prompt) + places[: -(-len(completion) // size)]


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
    forward = model if forward is None else forward
    past_ids, window = inputs["past_ids"], inputs["window"]
    length = past_ids.shape[1]
    positions = torch.arange(length, device=window.device).expand(len(window), -1)
    cache = DynamicCache(config=model.config)

    def attention_mask(is_visible: Any, queries: int, keys: int) -> dict[str, Any]:
        shape = (len(window), queries, keys)
        mask = make_attention_mask(model.config, is_visible, shape, dtype=model.dtype, device=window.device)
        return {"full_attention": mask}

    def is_visible(row, head, query, key):
        # Tokens before the window, and its own masks, whose keys come after all tokens.
        block = torch.cat([positions, window], dim=1)[row, key]
        return torch.where(key < length, block < window[row, query], block == window[row, query])

    gate = gate_adapters(model) or MaskGate([])
    with torch.no_grad(), gate.on(None):
        causal = attention_mask(block_causal(positions, positions), length, length)
        past = {"input_ids": past_ids, "position_ids": positions, "attention_mask": causal}
        forward(**past, past_key_values=cache, logits_to_keep=1)
    with gate.on(torch.ones(1, 1, dtype=torch.bool, device=window.device)):
        return forward(
            input_ids=inputs["input_ids"],
            position_ids=inputs["position_ids"],
            attention_mask=attention_mask(is_visible, window.shape[1], length + window.shape[1]),
            past_key_values=cache,
            # Each mask predicts the token after its place, which is where its label stands.
            predicting_columns=torch.arange(window.shape[1], device=window.device).expand(len(window), -1),
            logits_to_keep=where,
            labels=labels,
            head_function=function,
        ).logits
