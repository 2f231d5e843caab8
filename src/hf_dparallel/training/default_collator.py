# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The collator that suits a model, and the callback that tells it the epoch."""

from torch import nn
from transformers import PreTrainedTokenizerBase, TrainerCallback
from transformers.utils import logging

from hf_dparallel_rules.settings import SettingError

from ..generation.compatibility import moves_blocks
from ..generation.configuration import recipe_of
from ..generation.inputs import vocabulary_size
from .block_collator import BlockCausalCollator
from .collator import DataCollatorForSemiAutoregressiveMasking
from .config import CertaintyForcingConfig
from .student import base_model, special_token_id


logger = logging.get_logger(__name__)

# The settings of masks that a configuration and a collator both have.
MASK_SETTINGS = ("block_length", "mask_ratio", "masking", "complementary_masking", "max_length")


def default_collator(
    args: CertaintyForcingConfig, model: nn.Module, processing_class: PreTrainedTokenizerBase | None
) -> DataCollatorForSemiAutoregressiveMasking:
    """Returns the collator for this model. The block length of a block-causal model replaces that of `args`."""
    base = base_model(model)
    settings = {name: getattr(args, name) for name in MASK_SETTINGS}
    for name in ("mask_token_id", "eos_token_id"):
        settings[name] = special_token_id(name, model, processing_class)
    settings |= {"seed": mask_seed(args), "vocab_size": vocabulary_size(base)}
    if base.attention == "full":
        if args.block_origin is not None:
            rule = f"has no meaning for {type(base).__name__}, whose attention is full: its blocks follow the prompt"
            raise SettingError("block_origin", args.block_origin, rule, "Leave it out.")
        return DataCollatorForSemiAutoregressiveMasking(**settings)
    if args.block_length != base.block_length:
        logger.warning(
            f"`block_length={args.block_length}` is replaced by {base.block_length}, the block length of the model. "
            "To teach it another one, set `model.config.block_length` first."
        )
    return BlockCausalCollator(
        **settings | {"block_length": base.block_length},
        attention=base.attention,
        block_origin=args.block_origin or recipe_of(base).block_origin or base.block_origin,
        predicts_next_block=base.predicts_next_block,
        shift_logits=base.shift_logits,
    )


def check_collator(collator: BlockCausalCollator, model: nn.Module) -> None:
    """Raises a [`SettingError`] if the rows of a block-causal collator do not suit a model."""
    base = base_model(model)
    name, length = type(base).__name__, base.block_length if base.attention != "full" else None
    if not base.is_native:
        rule = f"makes rows that only classes of this package read, and {name} is none"
        raise SettingError("data_collator", collator, rule, "Load the model by the class of its family.")
    for setting in ("attention", "predicts_next_block", "shift_logits"):
        if getattr(collator, setting) != getattr(base, setting):
            rule = f"is not that of {name}, which is {getattr(base, setting)!r}"
            raise SettingError(setting, getattr(collator, setting), rule, "Leave `data_collator` out.")
    if collator.block_length != length:
        rule = f"is another than the model's: blocks of {name} have {length} tokens"
        raise SettingError("block_length", collator.block_length, rule, "Or set `model.config.block_length`.")
    if collator.block_origin == "answer" and not moves_blocks(base):
        rule = f"would move the blocks that {name} chooses experts for"
        raise SettingError("block_origin", collator.block_origin, rule, "Leave it out.")


def mask_seed(args: CertaintyForcingConfig) -> int:
    """Returns the seed of the masks, which is that of the data."""
    return args.seed if args.data_seed is None else args.data_seed


class MaskingCallback(TrainerCallback):
    """Tells the collator the epoch, so that every epoch has its own masks and a resumed one has them again.

    In a search it tells the collator a searched seed, and refuses searched settings of masks.
    """

    def __init__(self, data_collator: DataCollatorForSemiAutoregressiveMasking, args: CertaintyForcingConfig):
        self.data_collator = data_collator
        self.seed = mask_seed(args)
        self.settings = {name: getattr(args, name) for name in (*MASK_SETTINGS, "block_origin")}
        self.next_epoch = 0

    def on_train_begin(self, args, state, control, **kwargs):
        # A run that is resumed within an epoch begins at, say, 1.5.
        self.next_epoch = int(state.epoch)
        if mask_seed(args) != self.seed:
            self.seed = self.data_collator.seed = mask_seed(args)
        for name, value in self.settings.items():
            if getattr(args, name) != value:
                rule = f"cannot be searched: the masks of this trainer are drawn with {value!r}"
                raise SettingError(name, getattr(args, name), rule, "Make a trainer for each value.")

    def on_epoch_begin(self, args, state, control, **kwargs):
        # Counted here, because for streamed data, whose length is unknown, `state.epoch` is no whole number.
        self.data_collator.set_epoch(self.next_epoch)
        self.next_epoch += 1
