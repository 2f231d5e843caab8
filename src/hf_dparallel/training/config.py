# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The settings of [`CertaintyForcingTrainer`]."""

import contextlib
import math
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from transformers import DataCollator, PreTrainedTokenizerBase, TrainingArguments
from transformers.trainer_utils import SchedulerType

from hf_dparallel_rules.settings import SettingError

from .block_collator import default_collator
from .collator import MASKINGS, check_masks
from .objective import AddedTerm, Objective


@dataclass
class CertaintyForcingConfig(TrainingArguments):
    r"""
    Configuration class for the [`CertaintyForcingTrainer`].

    It adds the parameters of certainty-forcing distillation (https://huggingface.co/papers/2509.26488) to
    [`~transformers.TrainingArguments`], and gives some of those another default. The defaults are the paper's for
    LLaDA, and activation checkpointing is on. The help of each parameter stands beside its field.

    A subclass can add a term to the loss: a function in [`added_terms`], and a field `{name}_weight`.

    Raises:
        ValueError: if a value is out of range or has no meaning for this training.
    """

    learning_rate: float = field(default=2e-5, metadata={"help": "Initial learning rate of the optimizer."})
    weight_decay: float = field(
        default=0.01, metadata={"help": "Weight decay of the optimizer; biases and norms are exempt."}
    )
    lr_scheduler_type: SchedulerType | str = field(
        default="constant",
        metadata={"help": 'Schedule of the learning rate. With `warmup_steps`, "constant" is "constant_with_warmup".'},
    )
    logging_steps: float = field(
        default=10, metadata={"help": "Log every X update steps; a float in [0, 1) is a ratio of all steps."}
    )
    block_length: int = field(
        default=32,
        metadata={
            "help": "Tokens of a block; decode with the same. The block length of a block-causal model replaces it. "
            'Unused with `masking="random"`.'
        },
    )
    # `None` is refused below. It is in the type because the argument parser then reads strings, where `float | str`
    # would read floats only and refuse "random".
    mask_ratio: float | str | None = field(
        default=0.5,
        metadata={
            "help": 'Probability of masking a token of the active block, in (0, 1] (with `masking="trajectory"` the '
            'fraction that is masked); "random" draws it uniformly from (0, 1] for every row, and for a block-causal '
            "model for every block."
        },
    )
    masking: str = field(
        default="semi_autoregressive",
        metadata={
            "help": '"semi_autoregressive" masks one block and everything after it; "random" masks the whole answer, '
            'padding included (as the published code trains Dream); "trajectory" masks the tokens that the teacher '
            "committed last in one block, and everything after it, and needs the column `commit_step`. For a "
            "block-causal model all blocks of the answer are active.",
            "choices": list(MASKINGS),
        },
    )
    complementary_masking: bool = field(
        default=True,
        metadata={
            "help": "Train in the same step also on the view that masks exactly the other tokens of the block. The "
            "loss of a sequence is the sum of its two views."
        },
    )
    max_length: int = field(
        default=384,
        metadata={
            "help": "Length in tokens to which prompt and completion together are padded with EOS. Longer rows "
            "are left out, with a count. For block-causal models rounded up to whole blocks."
        },
    )
    certainty_temperature: float = field(
        default=0.5, metadata={"help": "Temperature of the entropy that is minimized, T in Eq. 7 of the paper."}
    )
    certainty_weight: float = field(
        default=2.0, metadata={"help": "Weight of the certainty-forcing loss, beta in Eq. 8 of the paper."}
    )
    consistency_weight: float = field(default=1.0, metadata={"help": "Weight of the cross-entropy on the trajectory."})
    chat_template_kwargs: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Further arguments of the chat template, for prompts and completions alike, such as "
            "'{\"enable_thinking\": false}' for Qwen3's."
        },
    )
    activation_checkpointing: bool | None = field(
        default=None,
        metadata={"help": "Whether to compute activations again in the backward pass, by default yes."},
    )
    gradient_checkpointing: bool | None = field(default=None, metadata={"help": "See `activation_checkpointing`."})

    _VALID_DICT_FIELDS = [*TrainingArguments._VALID_DICT_FIELDS, "chat_template_kwargs"]

    @property
    def added_terms(self) -> dict[str, AddedTerm]:
        """Terms that a subclass adds, by name. Each needs a setting `{name}_weight`; at 0 it is not computed."""
        return {}

    @property
    def objective(self) -> Objective:
        """The loss with these weights."""
        weights = {"consistency": self.consistency_weight, "certainty": self.certainty_weight}
        for name in self.added_terms:
            weight = getattr(self, f"{name}_weight")
            if weight:
                weights[name] = weight
        return Objective(self.certainty_temperature, weights, self.added_terms)

    def choose_collator(
        self, given: DataCollator | None, model: nn.Module, processing_class: PreTrainedTokenizerBase | None
    ) -> DataCollator:
        """Returns the collator that the caller gave, or the one that makes the rows for this model.

        A subclass whose terms need other rows makes them here, and refuses what it cannot use.
        """
        return given or default_collator(self, model, processing_class)

    def __post_init__(self):
        if isinstance(self.mask_ratio, str):
            # The command line gives every value as a string.
            with contextlib.suppress(ValueError):
                self.mask_ratio = float(self.mask_ratio)
        check_masks(self)

        if not 0 < self.certainty_temperature < math.inf:
            raise SettingError(
                "certainty_temperature",
                self.certainty_temperature,
                rule="must be positive",
                remedy="The paper uses 0.5.",
            )

        for term in ("certainty", "consistency", *self.added_terms):
            weight = getattr(self, f"{term}_weight")
            if not 0 <= weight < math.inf:
                raise SettingError(f"{term}_weight", weight, rule="must be a number of at least 0")

        if self.label_smoothing_factor != 0:
            raise SettingError(
                "label_smoothing_factor",
                self.label_smoothing_factor,
                rule="has no meaning for certainty-forcing distillation",
                remedy="Leave it at 0.",
            )
        if self.train_sampling_strategy not in ("random", "sequential"):
            raise SettingError(
                "train_sampling_strategy",
                self.train_sampling_strategy,
                rule="must be 'random' or 'sequential', whose order a resumed run and several processes repeat",
            )

        # As a plain default it would win over a `gradient_checkpointing=False`, its older name, and the only one up to
        # transformers 5.22.
        if self.activation_checkpointing is None:
            self.activation_checkpointing = self.gradient_checkpointing is not False
        self.gradient_checkpointing = self.activation_checkpointing

        super().__post_init__()
        if self.warmup_steps and self.lr_scheduler_type == "constant":
            self.lr_scheduler_type = SchedulerType.CONSTANT_WITH_WARMUP
