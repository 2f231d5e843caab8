# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The recipe of a student, by which it decodes as it was trained, and the record of its training."""

from typing import Any

from transformers import TrainingArguments

from hf_dparallel_rules.settings import SETTINGS, SettingError

from ..data.folder import common_chat_template_kwargs
from ..generation.configuration import DiffusionGenerationConfig, check_chat, recipe_of
from ..hub.push import hub_name
from .config import CertaintyForcingConfig
from .student import base_model


# Beside the settings that CertaintyForcingConfig adds.
_RECORDED_SETTINGS = [
    "gradient_accumulation_steps",
    "learning_rate",
    "lr_scheduler_type",
    "max_grad_norm",
    "optim",
    "seed",
    "train_sampling_strategy",
    "warmup_steps",
    "weight_decay",
]
_RECORDED_METRICS = ("loss", "consistency_loss", "certainty_loss", "masked_entropy", "masked_accuracy")


def chat_arguments(given: dict[str, Any] | str | None, model: Any, dataset: Any) -> dict[str, Any] | None:
    """Returns what the chat template gets: from the caller, the recipe of the model and the trajectories together.

    Raises a [`SettingError`] for a contradiction.
    """
    base = base_model(model)
    given = SETTINGS["chat_template_kwargs"].read(given) or {}
    check_chat(base, given)
    given = (recipe_of(base).chat_template_kwargs or {}) | given

    found = common_chat_template_kwargs(dataset) or {}
    if any(given.get(name, value) != value for name, value in found.items()):
        raise SettingError(
            "chat_template_kwargs",
            given,
            rule=f"contradicts the data, whose prompts have {found}",
            remedy="Leave it out, or make the trajectories with it.",
        )
    return (given | found) or None


def student_recipe(trainer: Any) -> DiffusionGenerationConfig:
    """Returns the model's recipe, with the blocks of the training, and a canvas for the longest completion.

    If it has no commit rule, adds the paper's, or for exact decoding the one that decided most tokens a pass.
    """
    args = trainer.args
    base = base_model(trainer.model)
    recipe = recipe_of(base).updated(chat_template_kwargs=args.chat_template_kwargs)
    rule = recipe.commit_rule()
    if rule == "denoising_steps":
        return recipe  # steps of a canvas of its own

    if rule is None and base.is_autoregressive:
        # A wrong draft changes no answer.
        recipe = recipe.updated(confidence_threshold=0.8)
    elif rule is None and args.certainty_weight:
        # A student that is not taught to be certain is a teacher, and gets no threshold.
        recipe = recipe.updated(entropy_threshold=0.5)
    if recipe.block_length is None or args.masking != "random":
        recipe = recipe.updated(block_length=args.block_length)
    if trainer.train_dataset is None:
        return recipe

    num_blocks = -(-trainer.longest_completion // recipe.block_length)
    return recipe.updated(max_new_tokens=num_blocks * recipe.block_length)


def training_summary(trainer: Any) -> dict[str, Any]:
    """Returns the facts for the card: model, data, settings and metrics of the training. Saved beside the weights."""
    args = trainer.args
    dataset = trainer.train_dataset
    base = base_model(trainer.model)

    inherited = TrainingArguments.__dataclass_fields__
    own = [name for name in CertaintyForcingConfig.__dataclass_fields__ if name not in inherited]
    of_terms = [f"{term}_weight" for term in args.added_terms]
    settings: dict[str, Any] = {}
    for name in (*_RECORDED_SETTINGS, *own, *of_terms):
        value = getattr(args, name)
        if value is not None:
            settings[name] = value

    # The batch that was found to fit, with `auto_find_batch_size`.
    batch_size = trainer.state.train_batch_size or args.train_batch_size
    settings["batch_size"] = batch_size * args.gradient_accumulation_steps * args.world_size
    settings["steps"] = trainer.state.global_step

    # The last value of each.
    logged: dict[str, Any] = {}
    for logs in trainer.state.log_history:
        logged |= logs

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
