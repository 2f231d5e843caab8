# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The settings of [`CertaintyForcingTrainer`]."""

from dataclasses import dataclass, field

from transformers import TrainingArguments
from transformers.trainer_utils import SchedulerType

from .collator import MASKINGS, check_masking_settings


@dataclass
class CertaintyForcingConfig(TrainingArguments):
    r"""
    Configuration class for the [`CertaintyForcingTrainer`].

    It adds the parameters of certainty-forcing distillation (https://huggingface.co/papers/2509.26488) to those of
    [`~transformers.TrainingArguments`]. The defaults are the paper's for LLaDA.

    Parameters:
        > Parameters that control the masking

        block_length (`int`, *optional*, defaults to `32`):
            Number of tokens in a block. Use the block length you will decode with. That of a block-causal model
            replaces it.
        mask_ratio (`float` or `"random"`, *optional*, defaults to `0.5`):
            Probability of masking a token of the active block, in (0, 1]; `"random"` draws it uniformly for every row
            (for a block-causal model for every block).
        masking (`str`, *optional*, defaults to `"semi_autoregressive"`):
            `"semi_autoregressive"` masks one block and everything after it; `"random"` masks the whole response;
            `"trajectory"` masks what the teacher committed last in one block, and everything after it, and needs the
            column `commit_step`. For a block-causal model all blocks of the answer are active, each in its own way.
        complementary_masking (`bool`, *optional*, defaults to `True`):
            Whether to also train, in the same step, on the view that masks exactly the other tokens of the block. The
            loss of a sequence is then the sum of its two views.
        initial_block_length (`int`, *optional*):
            Block length in the first epoch, from which it goes evenly to `block_length` in the last one. Not for
            block-causal models, whose blocks are those of their attention.
        initial_mask_ratio (`float`, *optional*):
            Mask ratio in the first epoch, from which it goes evenly to the number `mask_ratio` in the last one.
        padding_blocks (`bool`, *optional*, defaults to `False`):
            Whether to train also on blocks of nothing but padding, as the paper does. Without it, decode with
            `stop_at_eos=True`.
        suffix_length (`int`, *optional*):
            How many masked tokens behind the active block a row sees; by default all. Decode with the same setting.
            Not for block-causal models, which never see what follows a block.
        on_policy_ratio (`float`, *optional*, defaults to `0.0`):
            Share of the rows in which the masked tokens of the active block are replaced by the student's own
            guesses, right or wrong, and all tokens of the block are scored: the student learns to correct itself.
            Costs one pass without gradients.
        near_steps (`int`, *optional*):
            Masked tokens that the teacher committed this many passes or more after the first of them are learned from
            the distribution of the base model, whose adapter is switched off, instead of from the trajectory. 0:
            all of them. Needs an adapter and, unless 0, the column `commit_step`. Costs one pass without gradients.
        max_length (`int`, *optional*, defaults to `384`):
            Length in tokens to which prompt and completion together are padded with EOS. Longer rows are an error.
            For block-causal models rounded up to whole blocks.

        > Parameters that control the loss

        certainty_temperature (`float`, *optional*, defaults to `0.5`):
            Temperature of the entropy that is minimized, `T` in Eq. 7.
        certainty_weight (`float`, *optional*, defaults to `2.0`):
            Weight of the certainty-forcing loss, β in Eq. 8.
        consistency_weight (`float`, *optional*, defaults to `1.0`):
            Weight of the cross-entropy on the trajectory.
        teacher_temperature (`float`, *optional*, defaults to `1.0`):
            Temperature of the base model's distribution, with `near_steps`. Below 1 it is sharper.
        overconfidence_weight (`float`, *optional*, defaults to `0.0`):
            Weight of the penalty on wrong predictions of more than 0.6, whose entropy is raised.

    > [!NOTE]
    > These parameters have default values different from [`~transformers.TrainingArguments`]:
    > - `learning_rate`: Defaults to `2e-5` instead of `5e-5`.
    > - `weight_decay`: Defaults to `0.01` instead of `0.0`.
    > - `lr_scheduler_type`: Defaults to `"constant"` instead of `"linear"`.
    > - `logging_steps`: Defaults to `10` instead of `500`.
    > - `activation_checkpointing`: Defaults to `True` instead of `False`, unless `gradient_checkpointing` is set.

    Raises:
        ValueError: if a value is out of range, or `label_smoothing_factor` is set.
    """

    # Parameters whose default values are overridden from TrainingArguments
    learning_rate: float = field(default=2e-5, metadata={"help": "The initial learning rate of the optimizer."})
    weight_decay: float = field(
        default=0.01, metadata={"help": "Weight decay of the optimizer; biases and norms are exempt."}
    )
    lr_scheduler_type: SchedulerType | str = field(
        default="constant",
        metadata={"help": "The learning rate scheduler type to use. See `SchedulerType` for all possible values."},
    )
    logging_steps: float = field(
        default=10,
        metadata={
            "help": "Log every X update steps. An integer, or a float in [0, 1): a ratio of the total training steps."
        },
    )
    activation_checkpointing: bool | None = field(
        default=None,
        metadata={
            "help": "Whether to recompute activations in the backward pass, which saves memory and costs about a "
            "fifth of the speed. Defaults to `True`.",
            "nargs": "?",
            "const": True,
        },
    )

    # Parameters that control the masking
    block_length: int = field(
        default=32,
        metadata={"help": "Number of tokens in a block. Use the block length you will decode with."},
    )
    # `None` is refused below. It is in the type because the argument parser then reads strings, where `float | str`
    # would read floats only and refuse "random".
    mask_ratio: float | str | None = field(
        default=0.5,
        metadata={
            "help": "Probability of masking a token of the active block, in (0, 1]; or 'random': drawn uniformly for "
            "every row."
        },
    )
    masking: str = field(
        default="semi_autoregressive",
        metadata={
            "help": "'semi_autoregressive' masks one block and everything after it, 'random' the whole response, "
            "'trajectory' what the teacher committed last in one block, and everything after it.",
            "choices": list(MASKINGS),
        },
    )
    complementary_masking: bool = field(
        default=True,
        metadata={"help": "Whether to also train on the view that masks exactly the other tokens of the block."},
    )
    initial_block_length: int | None = field(
        default=None,
        metadata={"help": "Block length in the first epoch, if it is to grow to `block_length` over the epochs."},
    )
    initial_mask_ratio: float | None = field(
        default=None,
        metadata={"help": "Mask ratio in the first epoch, if it is to grow to `mask_ratio` over the epochs."},
    )
    padding_blocks: bool = field(
        default=False,
        metadata={"help": "Whether to train also on blocks of nothing but padding, as the paper does."},
    )
    suffix_length: int | None = field(
        default=None,
        metadata={"help": "How many masked tokens behind the active block a row sees; by default all."},
    )
    on_policy_ratio: float = field(
        default=0.0,
        metadata={
            "help": "Share of the rows whose masked tokens are replaced by the student's own guesses, and whose "
            "active block is scored as a whole."
        },
    )
    near_steps: int | None = field(
        default=None,
        metadata={
            "help": "Learn tokens that the teacher committed this many passes or more after the first masked one from "
            "the distribution of the base model. 0: all."
        },
    )
    max_length: int = field(
        default=384,
        metadata={"help": "Length in tokens to which prompt and completion together are padded with EOS."},
    )

    # Parameters that control the loss
    certainty_temperature: float = field(
        default=0.5, metadata={"help": "Temperature of the entropy that is minimized, T in Eq. 7 of the paper."}
    )
    certainty_weight: float = field(
        default=2.0, metadata={"help": "Weight of the certainty-forcing loss, beta in Eq. 8 of the paper."}
    )
    consistency_weight: float = field(default=1.0, metadata={"help": "Weight of the cross-entropy on the trajectory."})
    teacher_temperature: float = field(
        default=1.0, metadata={"help": "Temperature of the base model's distribution, with `near_steps`."}
    )
    overconfidence_weight: float = field(
        default=0.0, metadata={"help": "Weight of the penalty on wrong predictions of more than 0.6."}
    )

    def __post_init__(self):
        self.mask_ratio = _number_or_text(self.mask_ratio)
        check_masking_settings(self)
        self._check_loss_settings()
        # As a plain default it would win over a `gradient_checkpointing=False`, its older name.
        if self.activation_checkpointing is None and self.gradient_checkpointing is None:
            self.activation_checkpointing = True
        super().__post_init__()

    def _check_loss_settings(self) -> None:
        if not 0 < self.certainty_temperature < float("inf"):
            raise ValueError(
                f"`certainty_temperature` must be positive, got {self.certainty_temperature}. The paper uses 0.5."
            )
        if not 0 < self.teacher_temperature < float("inf"):
            raise ValueError(f"`teacher_temperature` must be positive, got {self.teacher_temperature}.")
        if self.teacher_temperature != 1.0 and self.near_steps is None:
            raise ValueError(
                f"`teacher_temperature={self.teacher_temperature}` has no meaning without `near_steps`, with which "
                "tokens are learned from the teacher's distribution. Set it, or leave both out."
            )
        for name in ("certainty_weight", "consistency_weight", "overconfidence_weight"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"`{name}` must be a number of at least 0, got {getattr(self, name)}.")
        if self.train_sampling_strategy == "group_by_length":
            raise ValueError(
                '`train_sampling_strategy="group_by_length"` changes nothing: all rows are padded to `max_length`. '
                "Leave it out."
            )
        if "inputs" in (self.include_for_metrics or []):
            raise ValueError(
                '`include_for_metrics=["inputs"]` would give masked views, where predictions and labels are by '
                "sequence. Leave it out."
            )
        if self.label_smoothing_factor != 0:
            raise ValueError(
                "`label_smoothing_factor` has no meaning for certainty-forcing distillation, got "
                f"{self.label_smoothing_factor}. Leave it at 0."
            )


def _number_or_text(value: float | str | None) -> float | str | None:
    """The command line gives every value as a string."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


__all__ = ["CertaintyForcingConfig"]
