# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Certainty-forcing distillation as a `transformers.Trainer`."""

import copy
import dataclasses
import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import (
    DataCollator,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    set_seed,
)
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import EvalLoopOutput, TrainOutput
from transformers.utils import ADAPTER_CONFIG_NAME

from ..data.dataset import TRAINING_COLUMNS, prepare_dataset
from ..hub.card import CARD_NAME, SUMMARY_NAME, TAGS, make_card, own_card
from ..hub.push import check_base_model, made_files
from ..models.base import MaskedDiffusionModel
from ..reports import write_json
from .checkpoints import check_resumable, last_complete_checkpoint
from .collator import (
    DataCollatorForSemiAutoregressiveMasking,
    ForeignRows,
    MaskingCallback,
    RowScoring,
)
from .config import CertaintyForcingConfig
from .objective import IGNORE_INDEX, averages, log_values
from .recipe import chat_arguments, student_recipe, training_summary
from .student import base_model, prepare_student


if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel


class CertaintyForcingTrainer(Trainer):
    r"""
    Trainer for certainty-forcing distillation (CFD), which teaches a masked diffusion language model to be certain of
    many tokens at once, on the trajectories it generates itself (https://huggingface.co/papers/2509.26488).

    It is a [`~transformers.Trainer`]. The loss of a sequence is Eq. 8 of the paper, summed over its two complementary
    views; the loss of a step is the mean over its sequences, whether they come in one batch, by gradient accumulation,
    or from several processes. A block-causal model learns all blocks of an answer in each step, from rows with a noisy
    and a clean copy of the sequence.

    Besides `loss`, it logs the following, averaged over the sequences since the last log (over the evaluation set,
    with prefix `eval_`):

    - `consistency_loss`: cross-entropy on the trajectory (Eq. 5), in nats, summed over the views of a sequence.
    - `certainty_loss`: entropy at `certainty_temperature` of the correct predictions (Eq. 7), in nats, summed the same
      way. `loss` is `consistency_weight * consistency_loss + certainty_weight * certainty_loss`, and terms that a
      subclass of [`CertaintyForcingConfig`] adds are logged and weighted so.
    - `masked_entropy`: mean entropy at temperature 1 of the scored tokens, in nats.
    - `masked_accuracy`: fraction of the scored tokens whose argmax is the label.

    Example:

    ```python
    >>> from hf_dparallel import CertaintyForcingConfig, CertaintyForcingTrainer
    >>> from peft import LoraConfig

    >>> trainer = CertaintyForcingTrainer(  # doctest: +SKIP
    ...     model="GSAI-ML/LLaDA-8B-Instruct",
    ...     args=CertaintyForcingConfig("llada-dparallel", bf16=True),
    ...     train_dataset=trajectories,
    ...     processing_class=tokenizer,
    ...     peft_config=LoraConfig(r=32, lora_alpha=32),
    ... )
    >>> trainer.train()  # doctest: +SKIP
    ```

    Args:
        model (`str` or [`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            The student, which starts as a copy of the teacher; a name is loaded by `AutoModelForMaskedLM`.
        args ([`CertaintyForcingConfig`]):
            Configuration for this trainer.
        train_dataset, eval_dataset ([`~datasets.Dataset`], *optional*):
            Data with columns `prompt_ids` and `completion_ids`, as from [`generate_trajectories`]; or, to be
            tokenized, `prompt` and `completion`, or `messages`. `eval_dataset` may be a `dict` of several. Evaluation
            uses the same masks each time.
        processing_class ([`~transformers.PreTrainedTokenizerBase`], *optional*):
            The tokenizer. Needed for text columns, and if the model's configuration does not name the mask and EOS
            tokens.
        data_collator ([`~transformers.DataCollator`], *optional*):
            Makes a batch with `input_ids` and `labels`, by default as [`DataCollatorForSemiAutoregressiveMasking`], or
            [`BlockCausalCollator`] for block-causal models, with the settings of `args`. If it returns several rows
            per sequence, it must set `num_views` and keep the default's order. Its `score` and `average` say how a
            batch is scored ([`RowScoring`]); without them `model.score` takes it.
        peft_config ([`~peft.PeftConfig`], *optional*):
            The adapter to train. If `None`, all weights that require gradients are trained. `target_modules=None`
            adapts all linear layers of attention and MLP.
        callbacks, optimizers, optimizer_cls_and_kwargs:
            As in [`~transformers.Trainer`].

    Raises:
        ValueError: before anything is trained: if the model is causal, no mask or EOS token is known, a target module
            does not exist, nothing is trainable, or a data set is empty, lacks columns or has long rows alone.
    """

    args: CertaintyForcingConfig
    data_collator: DataCollator

    _tag_names = list(TAGS)
    # `compute_loss` divides by the number of sequences in all accumulated batches.
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        model: "str | PreTrainedModel | PeftModel",
        args: CertaintyForcingConfig,
        train_dataset: Dataset | None = None,
        eval_dataset: Dataset | dict[str, Dataset] | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        data_collator: DataCollator | None = None,
        peft_config: "PeftConfig | None" = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LambdaLR | None] = (None, None),
        optimizer_cls_and_kwargs: tuple[type[torch.optim.Optimizer], dict[str, Any]] | None = None,
    ):
        if not isinstance(args, CertaintyForcingConfig):
            raise TypeError(f"`args` must be a `CertaintyForcingConfig`, got {type(args).__name__}.")

        # Before the weights of an adapter are drawn.
        set_seed(args.seed)
        model = prepare_student(model, processing_class, peft_config, trainable=train_dataset is not None)
        model.add_model_tags(self._tag_names)
        if args.push_to_hub and getattr(model, "peft_config", None):
            # Before the training: nobody else could use an adapter of a folder of this machine.
            check_base_model(base_model(model).config.name_or_path)

        # Its metrics are sums over scored tokens; a callback can add others ([`DecodingCallback`]).
        args.prediction_loss_only = True
        args.chat_template_kwargs = chat_arguments(args.chat_template_kwargs, model, train_dataset)
        data_collator = args.choose_collator(data_collator, model, processing_class)
        self._prepare_collator(data_collator, args)
        if isinstance(data_collator, DataCollatorForSemiAutoregressiveMasking):
            callbacks = [*(callbacks or []), MaskingCallback(data_collator)]

        self._row_checks |= {
            "processing_class": processing_class,
            "chat_template_kwargs": args.chat_template_kwargs,
        }
        with args.main_process_first(desc="preparing the data"):
            train_dataset = self._prepare_dataset(train_dataset, "train_dataset")
            eval_dataset = self._prepare_dataset(eval_dataset, "eval_dataset")

        super().__init__(
            model=model,
            args=args,
            data_collator=data_collator,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            callbacks=callbacks,
            optimizers=optimizers,
            optimizer_cls_and_kwargs=optimizer_cls_and_kwargs,
        )
        _prepare_fsdp(getattr(self.accelerator.state, "fsdp_plugin", None), self.model)

        # Trainer.evaluate skips the loss without label_names; we compute it ourselves.
        self.label_names = ["labels"]
        # The columns that the collator reads, not the arguments of the model's forward.
        self._signature_columns = list(TRAINING_COLUMNS)
        # In tokens, for the canvas of the recipe.
        self.longest_completion = max((len(row["completion_ids"]) for row in train_dataset or ()), default=0)
        # Sums of the values to log since the last log, on the device.
        self._sums: dict[str, torch.Tensor | int] = {"train": 0, "eval": 0}

    def _prepare_collator(self, collator: Any, args: CertaintyForcingConfig) -> None:
        """Sets how batches are made, scored and checked."""
        self._scoring = collator if isinstance(collator, RowScoring) else ForeignRows()
        self._num_views = getattr(collator, "num_views", 1)
        self._eval_collator = collator
        self._row_checks: dict[str, Any] = {}

        if getattr(collator, "trains_with_cache", False):
            args.activation_checkpointing = False
            args.gradient_checkpointing = False
        if not isinstance(collator, DataCollatorForSemiAutoregressiveMasking):
            return

        # A copy, which stays at epoch 0: each evaluation has the same masks, and training keeps its own.
        self._eval_collator = copy.deepcopy(collator)
        self._eval_collator.set_epoch(0)
        self._row_checks = {
            "eos_token_id": collator.eos_token_id,
            "max_length": collator.max_length,
            "check_row": collator.read_row,
        }

        # What the recipe and the card say.
        args.block_length = collator.block_length
        args.mask_ratio = collator.mask_ratio
        args.masking = collator.masking
        args.complementary_masking = collator.complementary_masking
        args.max_length = collator.max_length

    # The data

    def _prepare_dataset(self, dataset: Any, name: str) -> Any:
        if dataset is None:
            return None

        if isinstance(dataset, dict):
            if name == "train_dataset":
                # As `load_dataset` returns it without a split. `eval_dataset` may be several.
                raise ValueError(f"`{name}` must be one data set, got several: {list(dataset)}. Pass one of them.")
            return {key: self._prepare_dataset(part, f"{name}[{key!r}]") for key, part in dataset.items()}

        return prepare_dataset(dataset, name, **self._row_checks)

    def get_eval_dataloader(self, eval_dataset: str | Dataset | None = None) -> DataLoader:
        """Returns the loader of evaluation data, with the same masks each time."""
        if not isinstance(eval_dataset, str):
            eval_dataset = self._prepare_dataset(eval_dataset, "eval_dataset")
        with self._masks_of_evaluation():
            return super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Dataset) -> DataLoader:
        """Returns the loader of test data, with the masks of an evaluation."""
        with self._masks_of_evaluation():
            return super().get_test_dataloader(test_dataset)

    @contextmanager
    def _masks_of_evaluation(self) -> Iterator[None]:
        # What makes a loader takes the collator of the Trainer.
        collator = self.data_collator
        self.data_collator = self._eval_collator
        try:
            yield
        finally:
            self.data_collator = collator

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list, torch.Tensor]:
        """Collects the batches of an optimizer step and counts their sequences (not tokens)."""
        batches = list(itertools.islice(epoch_iterator, num_batches))
        num_rows = sum(len(batch["labels"]) for batch in batches)
        of_processes = torch.tensor(float(num_rows), device=device)
        return batches, self.accelerator.reduce(of_processes, reduction="mean") / self._num_views

    # The loss

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, dict[str, torch.Tensor]]:
        r"""
        Returns the certainty-forcing loss of a batch, from one forward pass with all views as rows.

        `num_items_in_batch` counts the *sequences* of the whole accumulated batch, as a mean over processes: in
        training, the sum of the loss over the sequences of this batch is divided by it. If `None`, the loss is the
        mean over them. `return_outputs` adds the [`RowTerms`].
        """
        objective = self.args.objective
        labels = inputs["labels"]
        model_inputs = {name: value for name, value in inputs.items() if name != "labels"}

        # One forward pass; the head computes the logits of the scored tokens alone, and their terms.
        token_terms = self._scoring.score(
            base_model(self.model),
            model_inputs,
            where=labels != IGNORE_INDEX,
            function=objective.token_terms,
            labels=labels,
            forward=model,
        )
        terms = self._scoring.average(token_terms, inputs)

        values = log_values(terms, self._num_views)
        num_sequences = len(values)
        if not model.training:
            # Also drops the rows that the data loader repeats to fill the last batch of all processes.
            values = self.accelerator.gather_for_metrics(values)
        elif num_items_in_batch is not None:
            num_sequences = num_items_in_batch
        self._sums["train" if model.training else "eval"] += values.sum(dim=0)

        loss = objective.weigh(terms).sum() / num_sequences
        return (loss, {"terms": terms}) if return_outputs else loss

    def evaluation_loop(self, *args, metric_key_prefix: str = "eval", **kwargs) -> EvalLoopOutput:
        """Evaluates, and adds our metrics to those of the [`~transformers.Trainer`]."""
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        metrics = self._pop_averages("eval")
        if metrics and type(self).compute_loss is CertaintyForcingTrainer.compute_loss:
            # The Trainer averages over batches, and takes rows for sequences when it drops the repeated ones of the
            # last batch. These sums are over sequences, but know nothing of a term that a subclass adds.
            weights = self.args.objective.weights
            metrics["loss"] = sum(weight * metrics[f"{name}_loss"] for name, weight in weights.items())

        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in metrics.items()})
        return output

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Logs `logs`, and with the training loss its terms since the last log."""
        if "loss" in logs:
            metrics = self._pop_averages("train")
            if not all(map(math.isfinite, metrics.values())):
                raise FloatingPointError(self._divergence())
            logs = logs | metrics
        super().log(logs, start_time)

    def _pop_averages(self, mode: str) -> dict[str, float]:
        sums = self._sums[mode]
        self._sums[mode] = 0
        if not torch.is_tensor(sums):
            return {}

        if mode == "train":
            sums = self.accelerator.reduce(sums)
        return averages(sums, list(self.args.objective.weights))

    # A run and its checkpoints

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs) -> TrainOutput:
        r"""
        Trains, see [`~transformers.Trainer.train`].

        Args:
            resume_from_checkpoint (`str` or `bool`, *optional*):
                The checkpoint to resume from. `True` is the last complete one in `output_dir`, so a run that was
                killed while it saved can be resumed. A run that has taken all its steps takes no more.
            kwargs:
                Further arguments of [`~transformers.Trainer.train`].

        Raises:
            ValueError: if there is no checkpoint to resume from, or it has another adapter or optimizer.
            FloatingPointError: if the training diverges.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = last_complete_checkpoint(self.args.output_dir)
            if resume_from_checkpoint is None:
                raise ValueError(
                    f"`resume_from_checkpoint=True` needs a checkpoint in {self.args.output_dir!r} that was written "
                    "to its end, and there is none. Train without it."
                )

        if resume_from_checkpoint:
            check_resumable(resume_from_checkpoint, self.model, self.args.optim.value)
        output = super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)

        # After the last step there is no loss to log.
        for weight in self.model.parameters():
            # With FSDP2, the part of this process.
            part = weight.to_local() if hasattr(weight, "to_local") else weight
            if weight.requires_grad and not part.isfinite().all():
                raise FloatingPointError(self._divergence())
        return output

    def _divergence(self) -> str:
        return (
            f"The training has diverged: loss or weights are NaN or infinite at step {self.state.global_step}. Lower "
            "`learning_rate`, or train in bfloat16 instead of float16."
        )

    def _init_training_state(self, max_steps, num_update_steps, num_epochs, checkpoint, trial) -> tuple[int, int]:
        trained = super()._init_training_state(max_steps, num_update_steps, num_epochs, checkpoint, trial)
        # The Trainer would go on with a finished run, within the epoch.
        return trained if self.state.global_step < max_steps else (num_epochs, 0)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        has_adapter = Path(resume_from_checkpoint, ADAPTER_CONFIG_NAME).is_file()
        is_whole = isinstance(self.model, MaskedDiffusionModel) and not has_adapter
        if not is_whole or self.is_fsdp_enabled or self.is_deepspeed_enabled:
            return super()._load_from_checkpoint(resume_from_checkpoint, model)

        saved = type(self.model).from_pretrained(
            resume_from_checkpoint, config=self.model.config, dtype=self.model.dtype
        )
        self.model.load_state_dict(saved.state_dict())

    def _load_best_model(self) -> None:
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            return super()._load_best_model()

        # The Trainer would read the file by itself, and does not know the published names of our weights.
        self._load_from_checkpoint(self.state.best_model_checkpoint)

    # What is saved

    def create_model_card(self, model_name: str | None = None, **about) -> None:
        """Writes a card, and `custom_generate/`, for what is saved in `output_dir`. An edited card is kept.

        Args:
            model_name (`str`, *optional*):
                Name in the card, unless `args.hub_model_id` is set. By default the name of `output_dir`.
            about:
                `base_model`, `report`, `dataset_name`, `license` and `tags`, as in [`push_model_to_hub`].

        Raises:
            ValueError: if the base model of an adapter is a local folder and `base_model` is not given.
        """
        if not self.is_world_process_zero():
            return

        folder = Path(self.args.output_dir)
        files = made_files(folder, self.hub_model_id or model_name or folder.name, **about)
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Saves the model, even if checkpoints are sharded."""
        plugin = getattr(self.accelerator.state, "fsdp_plugin", None)
        if plugin is not None and "FULL_STATE_DICT" not in str(plugin.state_dict_type):
            # The Trainer would save nothing.
            self._save(output_dir, self.accelerator.get_state_dict(self.model))
        super().save_model(output_dir, _internal_call)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        folder = Path(output_dir or self.args.output_dir)
        # PEFT would write into it, and name the base model by its folder.
        card = own_card(folder)

        super()._save(output_dir, state_dict)
        if not self.args.should_save:
            return

        # It may hold a token, and nothing reads it.
        (folder / TRAINING_ARGS_NAME).unlink(missing_ok=True)
        if self.args.push_to_hub:
            # A push during the training writes it again, and must not send it.
            Path(self.args.output_dir, ".gitignore").write_text(f"{TRAINING_ARGS_NAME}\n", encoding="utf-8")

        recipe = student_recipe(self)
        recipe.save_pretrained(folder)
        summary = training_summary(self)
        write_json(summary, folder / SUMMARY_NAME)

        if card is None:
            name = self.args.hub_model_id or folder.resolve().name
            card = f"{make_card(folder, name, recipe, base_model=summary['base_model'])}\n"
        (folder / CARD_NAME).write_text(card, encoding="utf-8")


def _prepare_fsdp(plugin: Any, model: nn.Module) -> None:
    """Keeps FSDP2 from rounding the terms of the loss, and raises a `ValueError` for buffers that it loses."""
    if getattr(plugin, "fsdp_version", None) != 2:
        return

    if plugin.mixed_precision_policy is not None:
        plugin.mixed_precision_policy = dataclasses.replace(plugin.mixed_precision_policy, output_dtype=torch.float32)

    saved = model.state_dict()
    buffers = [name for name, _ in model.named_buffers() if name in saved]
    if buffers and plugin.cpu_ram_efficient_loading:
        raise ValueError(
            "`fsdp_cpu_ram_efficient_loading: true` hands parameters to the other processes, and no buffers such as "
            f"{buffers[0]!r} of this model. Set it to false in the configuration of accelerate."
        )
