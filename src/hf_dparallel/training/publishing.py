# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What a trained model has beside its weights (recipe, record of its training, card), and its way to the Hub."""

import functools
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import CommitInfo, run_as_future
from transformers import PreTrainedModel, Trainer
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import HubStrategy

from ..hub.card import TAGS
from ..hub.facts import ModelFacts, check_base_model
from ..hub.files import SUMMARY_NAME
from ..hub.publish import push_model_to_hub, write_companions
from ..reports import write_json
from .config import CertaintyForcingConfig
from .recipe import student_recipe, training_summary
from .student import adapter_folder, base_model


if TYPE_CHECKING:
    from peft import PeftModel


class PublishingMixin(Trainer):
    """The part of a [`~transformers.Trainer`] that saves and publishes what it has trained."""

    args: CertaintyForcingConfig

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
        commit_message: str | None = "End of training",
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
        args = self.args
        self.callback_handler.on_push_begin(args, self.state, self.control)
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        self._finish_current_push()
        push = functools.partial(
            push_model_to_hub,
            args.output_dir,
            self.hub_model_id,
            commit_message=commit_message,
            token=args.hub_token if token is None else token,
            revision=args.hub_revision if revision is None else revision,
            private=args.hub_private_repo if private is None else private,
            **kwargs,
        )
        return push() if blocking else run_as_future(push)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Saves the model, even if checkpoints are sharded."""
        plugin = getattr(self.accelerator.state, "fsdp_plugin", None)
        if plugin is not None and "FULL_STATE_DICT" not in str(plugin.state_dict_type):
            # The Trainer would save nothing.
            self._save(output_dir, self.accelerator.get_state_dict(self.model))
        super().save_model(output_dir, _internal_call)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        super()._save(output_dir, state_dict)
        if self.args.should_save:
            folder = Path(output_dir or self.args.output_dir)
            # It tells paths of this machine, and nothing reads it.
            (folder / TRAINING_ARGS_NAME).unlink(missing_ok=True)
            # A push during the training takes the weights of the checkpoint, and all else from `output_dir`, which
            # would look like a saved model otherwise.
            self._write_companions(folder, *([Path(self.args.output_dir)] if self.args.push_to_hub else []))

    def _write_companions(self, folder: Path, *copies: Path, model_name: str | None = None, **kwargs) -> None:
        """Writes the recipe, the training summary and the card."""
        recipe, summary = student_recipe(self), training_summary(self)
        for target in {folder, *copies, folder / adapter_folder(self.model)}:
            recipe.save_pretrained(target)
            write_json(summary, target / SUMMARY_NAME)
        repo_id = model_name or self.hub_model_id or Path(self.args.output_dir).name
        write_companions(ModelFacts.read(folder, repo_id, **kwargs), *copies)


def check_can_be_pushed(args: CertaintyForcingConfig, model: "PreTrainedModel | PeftModel") -> None:
    """Raises a `ValueError` before the training if the push after it would fail."""
    if not args.push_to_hub:
        return
    if args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
        raise ValueError(
            f"`hub_strategy={args.hub_strategy.value!r}` would upload optimizer states and training_args.bin with "
            'paths of this machine. Set it to "every_save" or "end", and keep a copy of `output_dir` to resume from.'
        )
    try:
        kind = "adapter" if getattr(model, "peft_config", None) else "model"
        check_base_model(base_model(model).config.name_or_path, kind)
    except ValueError as error:
        raise ValueError(
            f"`push_to_hub=True`: {error} Or leave `push_to_hub` out, and call `trainer.push_to_hub(base_model=...)` "
            "after the training."
        ) from error
