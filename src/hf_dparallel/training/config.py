# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The settings of [`CertaintyForcingTrainer`]."""

import contextlib
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.trainer_utils import SchedulerType

from .hooks import documented
from .masking import Masking
from .objective import Objective


@documented
@dataclass
class CertaintyForcingConfig(Masking, Objective, TrainingArguments):
    r"""
    Configuration class for the [`CertaintyForcingTrainer`].

    It adds the parameters of certainty-forcing distillation (https://huggingface.co/papers/2509.26488) to
    [`~transformers.TrainingArguments`]. The defaults are the paper's for LLaDA.

    It has the parameters of [`Masking`] (what the student sees) and of [`Objective`] (what it is scored on), too.

    These parameters have other defaults than in [`~transformers.TrainingArguments`].

    Parameters:
        learning_rate (`float`, *optional*, defaults to `2e-5`):
            The initial learning rate of the optimizer.
        weight_decay (`float`, *optional*, defaults to `0.01`):
            Weight decay of the optimizer; biases and norms are exempt.
        lr_scheduler_type (`str` or [`~transformers.SchedulerType`], *optional*, defaults to `"constant"`):
            The learning rate scheduler type to use. See `SchedulerType` for all possible values. With `warmup_steps`,
            `"constant"` is `"constant_with_warmup"`.
        logging_steps (`float`, *optional*, defaults to `10`):
            Log every X update steps. An integer, or a float in [0, 1): a ratio of the total training steps.
        activation_checkpointing (`bool`, *optional*, defaults to `True` unless `gradient_checkpointing` is set):
            Whether to recompute activations in the backward pass, which saves memory and costs about a fifth of the
            speed.

    And this one is for data that is tokenized.

    Parameters:
        chat_template_kwargs (`dict` or `str`, *optional*):
            Further arguments of the chat template, for prompts and completions alike: `{"enable_thinking": False}` for
            Qwen3's. A `str` is read as JSON.

    Raises:
        ValueError: if a value is out of range, or `label_smoothing_factor` is set.
    """

    learning_rate: float = 2e-5
    weight_decay: float = 0.01
    lr_scheduler_type: SchedulerType | str = "constant"
    logging_steps: float = 10
    activation_checkpointing: bool | None = field(default=None, metadata={"nargs": "?", "const": True})
    chat_template_kwargs: dict[str, Any] | str | None = None

    _VALID_DICT_FIELDS = [*TrainingArguments._VALID_DICT_FIELDS, "chat_template_kwargs"]

    def __post_init__(self):
        if isinstance(self.mask_ratio, str):
            # The command line gives every value as a string.
            with contextlib.suppress(ValueError):
                self.mask_ratio = float(self.mask_ratio)
        self.check()
        # As a plain default it would win over a `gradient_checkpointing=False`, its older name.
        if self.activation_checkpointing is None and self.gradient_checkpointing is None:
            self.activation_checkpointing = True
        # torch warns in every epoch that it has nothing to pin memory for.
        if not torch.accelerator.is_available():
            self.dataloader_pin_memory = False
        super().__post_init__()
        if self.warmup_steps and self.lr_scheduler_type == "constant":
            self.lr_scheduler_type = SchedulerType.CONSTANT_WITH_WARMUP

    def check(self) -> None:
        super().check()
        rule = "would give masked views, where predictions and labels are by sequence"
        self.require("include_for_metrics", "inputs" not in (self.include_for_metrics or []), rule, "Leave it out.")
        remedy = "Leave it out, or give a positive number."
        self.require("max_steps", self.max_steps != 0, "trains nothing", remedy)
        self.require("num_train_epochs", self.num_train_epochs > 0 or self.max_steps > 0, "trains nothing", remedy)
        rule = "has no meaning for certainty-forcing distillation"
        self.require("label_smoothing_factor", self.label_smoothing_factor == 0, rule, "Leave it at 0.")
