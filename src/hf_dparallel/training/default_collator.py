# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The collator that the trainer makes of its settings and the model, and the callback that tells it the epoch."""

import dataclasses

from torch import nn
from transformers import PreTrainedTokenizerBase, TrainerCallback
from transformers.utils import logging

from ..generation.configuration import recipe_of
from ..generation.inputs import vocabulary_size
from .collator import DataCollatorForSemiAutoregressiveMasking
from .config import CertaintyForcingConfig
from .masking import Masking
from .student import base_model, special_token_id


logger = logging.get_logger(__name__)


def default_collator(
    args: CertaintyForcingConfig, model: nn.Module, processing_class: PreTrainedTokenizerBase | None
) -> DataCollatorForSemiAutoregressiveMasking:
    """Returns the collator for this model. The block length of a block-causal model replaces that of `args`."""
    settings = {field.name: getattr(args, field.name) for field in dataclasses.fields(Masking)}
    base = base_model(model)
    if base.attention != "full":
        block_length = base.block_length
        if args.block_length != block_length:
            logger.warning(
                f"`block_length={args.block_length}` is replaced by {block_length}, the block length of the model. To "
                "teach it another one, set `model.config.block_length` first."
            )
        origin = args.block_origin or recipe_of(base).block_origin or base.block_origin
        settings |= {"attention": base.attention, "block_length": block_length, "block_origin": origin}
    settings["mask_token_id"] = special_token_id("mask_token_id", model, processing_class)
    settings["eos_token_id"] = special_token_id("eos_token_id", model, processing_class)
    settings |= {"seed": mask_seed(args), "vocab_size": vocabulary_size(base)}
    return DataCollatorForSemiAutoregressiveMasking(**settings)


def mask_seed(args: CertaintyForcingConfig) -> int:
    """Returns the seed of the masks, which is that of the data."""
    return args.seed if args.data_seed is None else args.data_seed


class MaskingEpochCallback(TrainerCallback):
    """Tells the collator the epoch, so that every epoch has its own masks and a resumed one has them again."""

    def __init__(self, data_collator: DataCollatorForSemiAutoregressiveMasking):
        self.data_collator = data_collator
        self.next_epoch = 0

    def on_train_begin(self, args, state, control, **kwargs):
        # A run that is resumed within an epoch begins at, say, 1.5.
        self.next_epoch = int(state.epoch)

    def on_epoch_begin(self, args, state, control, **kwargs):
        # Counted here, because for streamed data, whose length is unknown, `state.epoch` is no whole number.
        self.data_collator.set_epoch(self.next_epoch)
        self.next_epoch += 1
