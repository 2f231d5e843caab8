# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Rows of a noisy and a clean copy, from which a block-causal student learns all blocks of an answer at once.

And the choice of the collator that suits a model.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils import logging

from hf_dparallel_rules.settings import SettingError

from ..attention_masks import Visibility, attention_blocks, make_attention_mask
from ..generation.configuration import recipe_of
from ..generation.inputs import vocabulary_size
from .collator import MASK_SETTINGS, DataCollatorForSemiAutoregressiveMasking, Views
from .objective import IGNORE_INDEX
from .student import base_model, training_token_id
from .window_collator import WindowCollator


logger = logging.get_logger(__name__)


@dataclass
class BlockCausalCollator(DataCollatorForSemiAutoregressiveMasking):
    r"""
    Data collator for models that never see what follows a block: all blocks of the answer are active at once, each
    masked with a draw of its own.

    A row is two copies of the sequence: a noisy one, and a clean one in which each noisy block finds the blocks before
    it (section B.6 of https://huggingface.co/papers/2503.09573). Both have the same positions, and only the noisy one
    has labels. Blocks from which no row of the batch learns anything are left out. Blocks are counted from the first
    token of the prompt or of the answer, as those models decode, and `max_length` is rounded up to whole blocks.

    Args:
        attention (`str`, *optional*, defaults to `"block_causal"`):
            The attention of the model: "block_causal" or "causal_past".
        block_origin (`str`, *optional*, defaults to `"sequence"`):
            Where blocks are counted from: `"sequence"` or `"answer"`.
        predicts_next_block (`bool`, *optional*, defaults to `False`):
            Whether the last token of a block predicts the first token of the next one.
        shift_logits (`bool`, *optional*, defaults to `False`):
            Whether each other token is predicted by the one before, too, in such a model.
        mask_token_id, eos_token_id, settings:
            As in [`DataCollatorForSemiAutoregressiveMasking`].
    """

    attention: str = "block_causal"
    block_origin: str = "sequence"
    predicts_next_block: bool = False
    shift_logits: bool = False

    @property
    def padded_length(self) -> int:
        """Length of all sequences: `max_length`, with room for a whole last block."""
        if self.block_origin == "answer":
            return self.max_length + self.block_length - 1
        return -(-self.max_length // self.block_length) * self.block_length

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        r"""
        Masks and batches `examples`.

        Returns:
            `dict` of `torch.LongTensor`s of shape `(num_views * len(examples), num_noisy + num_clean)`, the columns
            that the batch needs of the noisy copies and then of the clean ones: `input_ids`, `position_ids`, `labels`
            (-100 in clean copies); `attention_block`, the number of the block that attention has each column in, one
            row if it is the same for all; and `predicting_columns`, the column that predicts each token, if the model
            predicts next blocks. `num_noisy` is an `int`.
        """
        views = self.mask(examples)
        noisy, clean = self.needed_columns(views)
        return self.join_copies(views, noisy, clean)

    def needed_columns(self, views: Views) -> tuple[slice, slice]:
        """Returns the columns of the noisy and of the clean copies that a batch needs.

        Noisy blocks before and after the scored ones have no loss, and no scored block sees the clean copy of the last
        scored block or of later ones.
        """
        rows, columns = (views.labels != IGNORE_INDEX).nonzero(as_tuple=True)
        if len(columns) == 0:
            # A draw may mask nothing; one block keeps the loss connected to the weights.
            return slice(0, self.block_length), slice(0, 0)

        origin = self._origin(views)[rows, 0]
        starts = columns - (columns - origin) % self.block_length
        last = int(starts.max())
        return slice(int(starts.min()), last + self.block_length), slice(0, last)

    def join_copies(self, views: Views, noisy: slice, clean: slice) -> dict[str, Any]:
        """Returns the batch of these columns of the noisy and of the clean copies."""
        columns = torch.arange(self.padded_length)
        num_noisy = len(columns[noisy])
        positions = torch.cat([columns[noisy], columns[clean]]).repeat(len(views.clean), 1)
        is_clean = torch.arange(positions.shape[1]) >= num_noisy

        block_start = (positions - (positions - self._origin(views)) % self.block_length).clamp(min=0)
        attention_block = attention_blocks(self.attention, positions, block_start, is_clean)
        if self.block_origin == "sequence":
            attention_block = attention_block[:1]

        batch = {
            "input_ids": torch.cat([views.noisy[:, noisy], views.clean[:, clean]], dim=1),
            "position_ids": positions,
            "labels": views.labels.gather(1, positions).masked_fill(is_clean, IGNORE_INDEX),
            "attention_block": attention_block,
            "num_noisy": num_noisy,
        }
        if self.predicts_next_block:
            batch["predicting_columns"] = predicting_columns(positions, block_start, num_noisy, int(self.shift_logits))
        return batch

    def _origin(self, views: Views) -> torch.LongTensor:
        """Returns the column that the blocks of each row are counted from, `(rows, 1)`."""
        return views.answer_start if self.block_origin == "answer" else torch.zeros_like(views.answer_start)

    def active_spans(
        self, prompt_length: int, completion_length: int, generator: torch.Generator
    ) -> list[tuple[int, int]]:
        """Returns the columns of all blocks of the answer, without those of the prompt."""
        if self.masking == "random":
            return super().active_spans(prompt_length, completion_length, generator)

        origin = prompt_length if self.block_origin == "answer" else 0
        spans = []
        for edge in range(origin, prompt_length + completion_length, self.block_length):
            start = max(edge, prompt_length)
            end = edge + self.block_length
            if start < end:
                spans.append((start, end))
        return spans

    def score(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Scores a batch of this collator by `model.score`, with the attention mask of the copies."""
        return model.score(mask_copies(model.config, inputs, model.dtype), *args, **kwargs)


def noisy_and_clean(attention_block: torch.LongTensor, num_noisy: int) -> Visibility:
    """Lets rows of a noisy and a clean copy of the same tokens learn all blocks at once.

    A noisy block sees itself and the clean copies of the blocks before it, which is what it meets in decoding; the
    clean copy is block-causal in itself (https://huggingface.co/papers/2503.09573, section B.6). `attention_block`,
    `(rows, length)`, is the number of the block that each column is in; the first `num_noisy` are the noisy copy.
    """

    def is_visible(row, head, query, key):
        query_block = attention_block[row, query]
        key_block = attention_block[row, key]
        query_is_noisy = query < num_noisy

        within = query_is_noisy & (key_block == query_block)
        context = (key_block < query_block) | ((key_block == query_block) & ~query_is_noisy)
        return torch.where(key < num_noisy, within, context)

    return is_visible


def mask_copies(config: PreTrainedConfig, inputs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Returns inputs of a forward pass in which `attention_block` and `num_noisy` have become an attention mask.

    `attention_block` is `(rows, length)`, or `(1, length)` if all rows have the same blocks ([`noisy_and_clean`]).
    """
    inputs = dict(inputs)
    attention_block = inputs.pop("attention_block")
    num_noisy = inputs.pop("num_noisy")
    rows, length = inputs["input_ids"].shape

    mask = make_attention_mask(
        config,
        noisy_and_clean(attention_block.expand(rows, -1), num_noisy),
        (len(attention_block), length, length),
        dtype=dtype,
        device=attention_block.device,
    )
    if torch.is_tensor(mask):
        # For each row, because a model on several GPUs of one process is given some rows on each.
        mask = mask.expand(rows, -1, -1, -1)
    return inputs | {"attention_mask": mask}


def predicting_columns(
    position_ids: torch.LongTensor, block_start: torch.LongTensor, num_noisy: int, shift: int
) -> torch.LongTensor:
    """Returns, for rows of a noisy and a clean copy, the column whose logits score each token.

    The first token of a block is scored by the column before, which is in the clean copy, as in decoding, and another
    one by the column that is `shift` columns before. The clean copy may lack it for blocks that teach nothing.
    `position_ids`, `(rows, length)`, count from the first token, which keeps its own logits; `block_start`, of the
    same shape, is the position at which the block of each token begins.
    """
    length = position_ids.shape[1]
    columns = torch.arange(length, device=position_ids.device)
    # The clean copy is scored as an autoregressive model is.
    before = columns - torch.where(columns < num_noisy, shift, 1)
    last_of_block_before = num_noisy + position_ids - 1

    predicting = torch.where(position_ids == block_start, last_of_block_before, before)
    return torch.where(position_ids == 0, columns, predicting.clamp(0, length - 1))


def default_collator(
    args: Any, model: nn.Module, processing_class: PreTrainedTokenizerBase | None
) -> DataCollatorForSemiAutoregressiveMasking:
    """Returns the collator for this model, with the settings of a [`CertaintyForcingConfig`].

    The block length of a block-causal model replaces that of `args`.
    """
    base = base_model(model)
    settings = {name: getattr(args, name) for name in MASK_SETTINGS}
    settings["mask_token_id"] = training_token_id("mask_token_id", model, processing_class)
    settings["eos_token_id"] = training_token_id("eos_token_id", model, processing_class)
    settings["seed"] = args.seed if args.data_seed is None else args.data_seed
    settings["vocab_size"] = vocabulary_size(base)

    if base.attention == "full":
        return DataCollatorForSemiAutoregressiveMasking(**settings)

    settings["block_length"] = base.config.block_length
    if args.block_length not in (base.config.block_length, type(args).block_length):  # the default is nobody's wish
        logger.warning(
            f"`block_length={args.block_length}` is replaced by {base.config.block_length}, the block length of the "
            "model. To teach it another one, set `model.config.block_length` first."
        )

    if base.is_autoregressive:
        if args.n_gpu > 1:
            raise SettingError(
                "n_gpu",
                args.n_gpu,
                rule="is more than one GPU in one process, whose threads do not know where the masks are",
                remedy="Start a process for each with `accelerate launch`, or show one with CUDA_VISIBLE_DEVICES.",
            )
        return WindowCollator(**settings)

    if not base.is_native:
        raise SettingError(
            "data_collator",
            None,
            rule=f"is needed: the default makes rows for classes of this package, which {type(base).__name__} is not",
            remedy="Load the model by the class of its family.",
        )
    return BlockCausalCollator(
        **settings,
        attention=base.attention,
        block_origin=recipe_of(base).block_origin or base.config.block_origin,
        predicts_next_block=base.predicts_next_block,
        shift_logits=base.shift_logits,
    )
