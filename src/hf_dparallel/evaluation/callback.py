# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Decodes prompts while a student trains: tokens per pass, and accuracy."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from transformers import TrainerCallback

from ..data.prompts import check_new_columns, tokenize_prompts
from ..data.rewards import RewardFunction, check_reward_columns
from ..generation.answerer import Answerer
from ..generation.configuration import DiffusionGenerationConfig
from .decoding import evaluate_answers


if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import Trainer

_AVERAGED = ("accuracy", "nfe", "tokens_per_forward")


class DecodingCallback(TrainerCallback):
    """
    Decodes prompts at every evaluation, with the adapter as it is then, and logs to the trainer's trackers
    `eval_decoding_accuracy`, `eval_decoding_nfe` and `eval_decoding_tokens_per_forward`, see [`evaluate_decoding`].
    Each may be the `metric_for_best_model`: `"decoding_accuracy"`.

    Under several processes each decodes its share of the prompts.

    Args:
        trainer ([`CertaintyForcingTrainer`]):
            The trainer that the callback is added to, with `eval_strategy`, `eval_dataset` and `processing_class`.
        dataset, reward_funcs, generation_config, batch_size:
            As in [`evaluate_decoding`]. A few dozen prompts do.

    Raises:
        ValueError: at once, if nothing would ever be decoded, a prompt cannot be tokenized, a column of the rewards is
            missing, there are fewer prompts than processes, or the model is split over processes.
    """

    def __init__(
        self,
        trainer: "Trainer",
        dataset: "Dataset",
        reward_funcs: RewardFunction | list[RewardFunction],
        generation_config: DiffusionGenerationConfig | None = None,
        batch_size: int = 16,
    ):
        _check_trainer(trainer, len(dataset))
        check_new_columns(dataset, ["completion_ids"])
        check_reward_columns(reward_funcs, dataset.column_names)

        answerer = Answerer(trainer.model, trainer.processing_class, generation_config, batch_size)
        self.answerer = answerer.with_(chat_template_kwargs=trainer.args.chat_template_kwargs)
        config = self.answerer.config
        tokenize_prompts(dataset, trainer.processing_class, config.mask_token_id, config.chat_template_kwargs)

        self.trainer = trainer
        self.dataset = dataset
        self.reward_funcs = reward_funcs

    def on_train_begin(self, args, state, control, **kwargs):
        # To the front: early stopping, which the trainer was made with, reads the metrics that are added here.
        callbacks = self.trainer.callback_handler.callbacks
        callbacks.insert(0, callbacks.pop(callbacks.index(self)))

    def on_evaluate(self, args, state, control, metrics: dict[str, float], **kwargs):
        # The Trainer evaluates each of several data sets on its own: once is enough.
        names = self.trainer.eval_dataset
        if isinstance(names, dict) and not any(name.startswith(f"eval_{next(iter(names))}_") for name in metrics):
            return

        trainer = self.trainer
        share = self.dataset.shard(args.world_size, args.process_index)
        # The copy resolves its recipe anew, now that the model is in evaluation mode, where it may have a cache.
        answerer = replace(self.answerer, model=trainer.model)
        means = evaluate_answers(answerer, share, self.reward_funcs, "Decoding").metrics()

        sums = torch.tensor([len(share) * means[name] for name in _AVERAGED], device=args.device)
        averages = (trainer.accelerator.reduce(sums) / len(self.dataset)).tolist()

        logged = {f"eval_decoding_{name}": value for name, value in zip(_AVERAGED, averages, strict=True)}
        # Before the Trainer looks for the best checkpoint in `metrics`.
        metrics.update(logged)
        trainer.log(logged)


def _check_trainer(trainer: "Trainer", num_prompts: int) -> None:
    if trainer.args.eval_strategy == "no" or trainer.eval_dataset is None:
        raise ValueError(
            '`DecodingCallback` runs at each evaluation, and the trainer has none. Set `eval_strategy="steps"`, '
            "`eval_steps` and an `eval_dataset`."
        )
    if trainer.processing_class is None:
        raise ValueError("`DecodingCallback` needs the tokenizer. Pass `processing_class=` to the trainer.")
    num_processes = trainer.args.world_size
    if num_prompts < num_processes:
        raise ValueError(f"`dataset` must have a prompt for each of the {num_processes} processes, got {num_prompts}.")
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        raise ValueError(
            "`DecodingCallback` needs the whole model in each process, which decodes its share of the prompts in its "
            "own number of passes. With FSDP or DeepSpeed, evaluate the saved checkpoints with `evaluate_decoding`."
        )
