# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What a trained model has beside its weights: recipe, record of its training, card."""

from pathlib import Path
from typing import TYPE_CHECKING

from transformers import PreTrainedModel, Trainer
from transformers.trainer import TRAINING_ARGS_NAME

from ..hub.card import SUMMARY_NAME, TAGS
from ..hub.push import check_base_model, made_files
from ..reports import write_json
from .config import CertaintyForcingConfig
from .recipe import student_recipe, training_summary
from .student import adapter_folder, base_model


if TYPE_CHECKING:
    from peft import PeftModel


class PublishingMixin(Trainer):
    """The part of a [`~transformers.Trainer`] that saves what it has trained, as it is published."""

    args: CertaintyForcingConfig

    _tag_names = list(TAGS)

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
        if self.is_world_process_zero():
            folder = Path(self.args.output_dir)
            for name, content in made_files(folder, self.hub_model_id or model_name or folder.name, **about).items():
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
        super()._save(output_dir, state_dict)
        if not self.args.should_save:
            return
        folder = Path(output_dir or self.args.output_dir)
        # It may hold a token, and nothing reads it.
        (folder / TRAINING_ARGS_NAME).unlink(missing_ok=True)
        if self.args.push_to_hub:
            # A push during the training writes it again, and must not send it.
            Path(self.args.output_dir, ".gitignore").write_text(f"{TRAINING_ARGS_NAME}\n", encoding="utf-8")
        for target in {folder, folder / adapter_folder(self.model)}:
            student_recipe(self).save_pretrained(target)
            write_json(training_summary(self), target / SUMMARY_NAME)


def check_can_be_pushed(args: CertaintyForcingConfig, model: "PreTrainedModel | PeftModel") -> None:
    """Raises a `ValueError` before the training if nobody else could use the adapter that is pushed."""
    if args.push_to_hub and getattr(model, "peft_config", None):
        try:
            check_base_model(base_model(model).config.name_or_path)
        except ValueError as error:
            raise ValueError(
                f"`push_to_hub=True`: {error} Or leave `push_to_hub` out, and call "
                "`trainer.push_to_hub(base_model=...)` after the training."
            ) from error
