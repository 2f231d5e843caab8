# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel train`: certainty-forcing distillation on trajectories."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click
import datasets
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    HfArgumentParser,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from trl import ModelConfig, get_peft_config, get_quantization_config

from hf_dparallel_cli.flags import TrainFlags

from ..data.dataset import prepare_dataset
from ..demo import path_of
from ..training.config import CertaintyForcingConfig
from ..training.student import special_token_id
from ..training.trainer import CertaintyForcingTrainer
from .console import note, say_table
from .loading import DEMO, checked_name, load_split


@dataclass
class StudentArguments(ModelConfig):
    model_name_or_path: str = field(
        metadata={
            "help": "The student, a copy of the teacher: its name on the Hub, a folder, or 'demo' for the bundled "
            "teacher.",
            "aliases": ["--model"],
        }
    )
    # TRL's default is for causal models. Without `lora_target_modules`, the trainer chooses them.
    lora_task_type: str | None = field(
        default=None, metadata={"help": "Leave it: PEFT has no task type for masked language models."}
    )


class _Parser(HfArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise click.UsageError(message)


def read_configs(values: Mapping[str, Any]) -> tuple[CertaintyForcingConfig, StudentArguments]:
    """Returns the settings of the training and of the student from the flags that were given, by name."""
    words = []
    for name, value in values.items():
        words += [f"--{name}", *map(str, value)] if isinstance(value, tuple) else [f"--{name}={value}"]
    try:
        return _Parser([CertaintyForcingConfig, StudentArguments]).parse_args_into_dataclasses(words)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def run(flags: TrainFlags) -> dict[str, Any] | None:
    """Trains, saves the adapter (or the model) and the tokenizer, and prints the last metrics."""
    training, student = read_configs({**flags.training, **flags.library})
    load = partial(load_split, flags.dataset_name, flags.dataset_config)
    splits = {"train_dataset": load(flags.dataset_train_split)}
    if training.eval_strategy != "no":
        splits["eval_dataset"] = load(flags.dataset_test_split)
    model, tokenizer = load_student(student)
    if flags.drop_long_rows:
        eos_token_id = special_token_id("eos_token_id", model, tokenizer)
        for name, rows in splits.items():
            chat: Any = training.chat_template_kwargs  # a dictionary, as the configuration reads it
            rows = prepare_dataset(rows, name, tokenizer, eos_token_id=eos_token_id, chat_template_kwargs=chat)
            splits[name] = drop_long_rows(rows, training.max_length)
    trainer = CertaintyForcingTrainer(
        model=model, args=training, processing_class=tokenizer, peft_config=get_peft_config(student), **splits
    )
    # As text, `true` means the last checkpoint of the output folder.
    resumed = training.resume_from_checkpoint
    trainer.train(resume_from_checkpoint={"true": True, "false": None}.get(str(resumed).lower(), resumed))
    trainer.save_model()
    if training.push_to_hub:
        is_on_hub = flags.dataset_name != DEMO and not Path(flags.dataset_name).exists()
        trainer.push_to_hub(dataset_name=flags.dataset_name if is_on_hub else None)
    # The last value of everything that was logged.
    figures = {name: value for logs in trainer.state.log_history for name, value in logs.items()}
    figures["output_dir"] = training.output_dir
    # Processes that end without it may abort.
    trainer.accelerator.end_training()
    if not trainer.is_world_process_zero():
        return None
    say_table(figures)
    return figures


def load_student(arguments: StudentArguments) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Returns model and tokenizer. The trainer chooses the device."""
    name = path_of(arguments.model_name_or_path)
    quantization = get_quantization_config(arguments)
    revision = {"revision": arguments.model_revision}
    with checked_name("model_name_or_path", name):
        tokenizer = AutoTokenizer.from_pretrained(name, **revision)
        model = AutoModelForMaskedLM.from_pretrained(
            name,
            dtype=arguments.dtype,
            attn_implementation=arguments.attn_implementation,
            **({} if quantization is None else {"quantization_config": quantization}),
            **revision,
        )
    return model, tokenizer


def drop_long_rows(rows: datasets.Dataset, max_length: int) -> datasets.Dataset:
    """Returns the rows that have at most `max_length` tokens, and says how many others there were."""
    kept = rows.filter(lambda row: len(row["prompt_ids"]) + len(row["completion_ids"]) <= max_length)
    note(f"Dropped {len(rows) - len(kept)} of {len(rows)} rows longer than max_length={max_length}.")
    return kept
