# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What a trained model has beside its weights (recipe, record of its training, card), and its way to the Hub."""

import functools
import json
import shutil
from concurrent.futures import Future
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from huggingface_hub import CommitInfo, run_as_future
from transformers import PreTrainedModel, Trainer, TrainingArguments
from transformers.trainer_utils import HubStrategy, has_length
from transformers.utils import PushInProgress, logging

from .._version import __version__
from ..generation.configuration import DiffusionGenerationConfig, recipe_of
from ..hub.card import TAGS, make_model_card
from ..hub.files import SUMMARY_NAME, WEIGHT_SUFFIXES, hub_name, kind_of, select_files
from ..hub.publish import check_base_model, push_model_to_hub, write_companions
from .config import CertaintyForcingConfig
from .student import base_model


if TYPE_CHECKING:
    from peft import PeftModel

logger = logging.get_logger(__name__)

# The paper's, for students of its method.
_ENTROPY_THRESHOLD = 0.5
# Beside the settings that CertaintyForcingConfig adds.
_RECORDED_SETTINGS = ("learning_rate", "lr_scheduler_type", "seed")
_RECORDED_METRICS = ("loss", "consistency_loss", "certainty_loss", "masked_entropy", "masked_accuracy")


class PublishingMixin(Trainer):
    """The part of a [`~transformers.Trainer`] that saves and publishes what it has trained."""

    args: CertaintyForcingConfig
    push_in_progress: PushInProgress | None

    _tag_names = list(TAGS)

    def create_model_card(self, model_name: str | None = None, **kwargs) -> None:
        """Writes the card of what is saved in `output_dir`, unless there is one that you have written.

        Args:
            model_name (`str`, *optional*):
                Title of the card. By default the name of the repository, or of `output_dir`.
            kwargs:
                `report`, `dataset_name`, `license` and `tags`, as in [`push_model_to_hub`].
        """
        if self.is_world_process_zero():
            self._write_companions(Path(self.args.output_dir), model_name=model_name, **kwargs)

    def push_to_hub(
        self,
        commit_message: str = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs,
    ) -> CommitInfo | Future[CommitInfo] | None:
        r"""
        Saves the model and publishes it as `args.hub_model_id`: see [`push_model_to_hub`] for what is uploaded.

        Args:
            commit_message, blocking, token, revision, private:
                As in [`~transformers.Trainer.push_to_hub`].
            kwargs:
                Further arguments of [`push_model_to_hub`], such as `report`, `dataset_name`, `license` or
                `base_model`.

        Raises:
            ValueError: if the base model is a local folder and `base_model` is not given, or a file tells a token or
                a path of this machine.
            OSError: if the Hub refuses.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        kwargs |= {
            "commit_message": commit_message,
            "token": token if token is not None else self.args.hub_token,
            "revision": revision if revision is not None else self.args.hub_revision,
            "private": private if private is not None else self.args.hub_private_repo,
        }
        push = functools.partial(push_model_to_hub, self.args.output_dir, self.hub_model_id, **kwargs)
        return push() if blocking else run_as_future(push)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Publishes a checkpoint in the background, with the checks of [`push_to_hub`]. A failure is a warning."""
        if not self.is_world_process_zero() or self.args.hub_strategy == HubStrategy.END:
            return
        previous = self.push_in_progress
        jobs = [] if previous is None or previous.is_done() else previous.jobs
        if jobs and not self.args.hub_always_push:
            return
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        try:
            files = _copy_for_push(Path(self.args.output_dir), Path(checkpoint_folder))
        except (OSError, ValueError) as error:
            return logger.warning(f"A checkpoint was not published: {error}")
        job = run_as_future(
            _push_and_delete,
            files,
            self.hub_model_id,
            commit_message=f"Training in progress, step {self.state.global_step}",
            token=self.args.hub_token,
            revision=self.args.hub_revision,
            private=self.args.hub_private_repo,
        )
        self.push_in_progress = PushInProgress([*jobs, job])

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        super()._save(output_dir, state_dict)
        if self.args.should_save:
            # A push during the training takes the weights of the checkpoint, and all else from `output_dir`.
            self._write_companions(Path(output_dir or self.args.output_dir), Path(self.args.output_dir))

    def _write_companions(self, folder: Path, *copies: Path, model_name: str | None = None, **kwargs) -> None:
        """Writes all that a published model has beside its weights."""
        recipe, summary = student_recipe(self.model, self.args), training_summary(self)
        for target in {folder, *copies}:
            recipe.save_pretrained(target)
            (target / SUMMARY_NAME).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        repo_id = model_name or self.hub_model_id or Path(self.args.output_dir).name
        card = make_model_card(folder, repo_id, summary["base_model"], recipe, **kwargs)
        for target in {folder, *copies}:
            write_companions(target, card)


def _copy_for_push(output_dir: Path, checkpoint: Path) -> "TemporaryDirectory[str]":
    """Copies what a push uploads: the training replaces and deletes these files before the upload is done.

    The weights are those of the checkpoint. A license and a card of one's own are in `output_dir`.
    """
    copy = TemporaryDirectory(prefix="push-", dir=output_dir)
    kind = kind_of(checkpoint)
    for name, path in {**select_files(output_dir, kind), **select_files(checkpoint, kind)}.items():
        if path.suffix in WEIGHT_SUFFIXES and not path.is_relative_to(checkpoint):
            continue
        target = Path(copy.name, name)
        target.parent.mkdir(exist_ok=True)
        shutil.copy(path, target)
    return copy


def _push_and_delete(folder: "TemporaryDirectory[str]", *args: Any, **kwargs: Any) -> CommitInfo:
    """Nobody asks this job for its result, so it tells itself of a failure."""
    with folder:
        try:
            return push_model_to_hub(folder.name, *args, **kwargs)
        except Exception as error:
            logger.warning(f"A checkpoint was not published: {error}")
            raise


def check_can_be_pushed(args: CertaintyForcingConfig, model: "PreTrainedModel | PeftModel") -> None:
    """Checks, before the training, what would stop a push after it.

    Raises:
        ValueError: if checkpoints with optimizer states were to be uploaded, or the base model is a local folder.
    """
    if not args.push_to_hub:
        return
    if args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
        raise ValueError(
            f"`hub_strategy={args.hub_strategy.value!r}` would upload optimizer states and training_args.bin with "
            'paths of this machine. Set it to "every_save" or "end", and keep a copy of `output_dir` to resume from.'
        )
    try:
        kind = "adapter" if getattr(model, "peft_config", None) else "model"
        check_base_model(base_model(model).config._name_or_path, kind)
    except ValueError as error:
        raise ValueError(
            f"`push_to_hub=True`: {error} Or leave `push_to_hub` out, and call `trainer.push_to_hub(base_model=...)` "
            "after the training."
        ) from error


def student_recipe(model: "PreTrainedModel | PeftModel", args: CertaintyForcingConfig) -> DiffusionGenerationConfig:
    """The model's own settings; without a commit rule among them, the paper's, with the blocks of the training."""
    recipe = recipe_of(base_model(model))
    if recipe.commit_rule() is not None:
        return recipe
    return recipe.updated(entropy_threshold=_ENTROPY_THRESHOLD, block_length=args.block_length)


def training_summary(trainer: PublishingMixin) -> dict[str, Any]:
    """What was trained, on what, and how: the facts of the card, which are saved beside the weights."""
    args, dataset = trainer.args, trainer.train_dataset
    base = base_model(trainer.model)
    inherited = {field.name for field in fields(TrainingArguments)}
    own = [field.name for field in fields(CertaintyForcingConfig) if field.name not in inherited]
    settings = {name: getattr(args, name) for name in (*_RECORDED_SETTINGS, *own) if getattr(args, name) is not None}
    # The batch that was found to fit, with `auto_find_batch_size`.
    batch_size = trainer.state.train_batch_size or args.train_batch_size
    settings["batch_size"] = batch_size * args.gradient_accumulation_steps * args.world_size
    settings["steps"] = trainer.state.global_step
    logged = {name: value for logs in trainer.state.log_history for name, value in logs.items()}
    return {
        # A folder of this machine says nothing to others.
        "base_model": hub_name(base.config._name_or_path),
        "architecture": type(base).__name__,
        "shift_logits": base.shift_logits,
        # `filter_trajectories` writes it.
        "dataset_description": getattr(getattr(dataset, "info", None), "description", ""),
        "num_sequences": len(dataset) if has_length(dataset) else None,
        "settings": settings,
        "metrics": {name: logged[name] for name in _RECORDED_METRICS if name in logged},
        "versions": {"hf-dparallel": __version__, **{name: version(name) for name in ("transformers", "torch")}},
    }


__all__ = ["PublishingMixin", "check_can_be_pushed", "student_recipe", "training_summary"]
