# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The recipe of a student, by which it decodes as it was trained, and the record of its training."""

from dataclasses import fields
from typing import Any

from transformers import TrainingArguments

from ..generation.configuration import DiffusionGenerationConfig, recipe_of
from ..hub.push import hub_name
from .collator import MASK_SETTINGS, DataCollatorForSemiAutoregressiveMasking
from .config import CertaintyForcingConfig
from .student import base_model


# Beside the settings that CertaintyForcingConfig adds.
_RECORDED_SETTINGS = ("learning_rate", "lr_scheduler_type", "seed")
_RECORDED_METRICS = ("loss", "consistency_loss", "certainty_loss", "masked_entropy", "masked_accuracy")


def mask_settings(trainer: Any) -> dict[str, Any]:
    """Returns the settings of the masks: of the collator if it is one of ours, else of the configuration."""
    is_ours = isinstance(trainer.data_collator, DataCollatorForSemiAutoregressiveMasking)
    source = trainer.data_collator if is_ours else trainer.args
    return {name: getattr(source, name, None) for name in (*MASK_SETTINGS, "block_origin")}


def student_recipe(trainer: Any) -> DiffusionGenerationConfig:
    """Returns the model's recipe, with the blocks of the training, and a canvas for the longest completion.

    If it has no commit rule, adds the paper's.
    """
    model, masks = base_model(trainer.model), mask_settings(trainer)
    recipe = recipe_of(model)
    if masks["block_origin"] is not None:
        recipe = recipe.updated(block_origin=masks["block_origin"])
    rule = recipe.commit_rule()
    if rule == "denoising_steps":
        return recipe  # steps of a canvas of its own
    if rule is None and trainer.args.certainty_weight:
        # A student that is not taught to be certain is a teacher, and gets no threshold.
        recipe = recipe.updated(entropy_threshold=0.5)
    if recipe.block_length is None or masks["masking"] != "random":
        recipe = recipe.updated(block_length=masks["block_length"])
    if trainer.train_dataset is None:
        return recipe
    num_blocks = -(-trainer.longest_completion // recipe.block_length)
    return recipe.updated(max_new_tokens=num_blocks * recipe.block_length)


def training_summary(trainer: Any) -> dict[str, Any]:
    """Returns the facts for the card: model, data, settings and metrics of the training. Saved beside the weights."""
    args, dataset = trainer.args, trainer.train_dataset
    base = base_model(trainer.model)
    inherited = {field.name for field in fields(TrainingArguments)}
    own = [field.name for field in fields(CertaintyForcingConfig) if field.name not in inherited]
    values = {**vars(args), **mask_settings(trainer)}
    settings = {name: values[name] for name in (*_RECORDED_SETTINGS, *own) if values[name] is not None}
    # The batch that was found to fit, with `auto_find_batch_size`.
    batch_size = trainer.state.train_batch_size or args.train_batch_size
    settings["batch_size"] = batch_size * args.gradient_accumulation_steps * args.world_size
    settings["steps"] = trainer.state.global_step
    logged = {name: value for logs in trainer.state.log_history for name, value in logs.items()}
    return {
        # A folder of this machine says nothing to others.
        "base_model": hub_name(base.config.name_or_path),
        "base_revision": getattr(base.config, "_commit_hash", None),
        # Whether it decodes without `enable_diffusion_generation`.
        "is_native": base.is_native,
        "shift_logits": base.shift_logits,
        "attention": base.attention,
        # What the files of the base do not say.
        "loaded_with": getattr(base.config, "loaded_with", dict)(),
        "num_sequences": None if dataset is None else len(dataset),
        "settings": settings,
        "metrics": {name: logged[name] for name in _RECORDED_METRICS if name in logged},
    }
