# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel train`: certainty-forcing distillation on trajectories."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from trl import ModelConfig, get_peft_config, get_quantization_config

from ..data.dataset import prepare_dataset
from ..demo import path_of
from ..training.config import CertaintyForcingConfig
from ..training.student import special_token_id
from ..training.trainer import CertaintyForcingTrainer
from .arguments import CommandParser, OutputArguments
from .console import note, say_table, write_json
from .loading import DEMO, load_split, loading


@dataclass
class TrainingDataArguments:
    _argument_group_name = "data"

    dataset_name: str = field(
        metadata={
            "help": "Trajectories: a dataset on the Hub, a .json, .jsonl or .parquet file, or a folder. Of a folder "
            "of `hf-dparallel trajectories` the rows that were kept are taken. It has columns 'prompt_ids' and "
            "'completion_ids', or 'prompt' and 'completion'."
        }
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration (subset) of the dataset."})
    dataset_train_split: str = field(default="train", metadata={"help": "Split to train on."})
    dataset_test_split: str = field(
        default="test", metadata={"help": "Split to evaluate on, if `eval_strategy` is not 'no'."}
    )
    drop_long_rows: bool = field(
        default=False,
        metadata={"help": "Drop rows that are longer than max_length; without it they are an error."},
    )


@dataclass
class ModelArguments(ModelConfig):
    _argument_group_name = "model"

    model_name_or_path: str = field(
        metadata={
            "help": "The student, a copy of the teacher: its name on the Hub, a folder, or 'demo' for the bundled "
            "teacher.",
            "aliases": ["--model"],
        }
    )
    # TRL's default is that of causal models. Without `lora_target_modules`, the trainer chooses them.
    lora_task_type: str | None = field(
        default=None, metadata={"help": "Leave it: PEFT has no task type for masked language models."}
    )


def make_parser() -> CommandParser:
    """The arguments of the command."""
    return CommandParser(
        "train",
        [TrainingDataArguments, CertaintyForcingConfig, ModelArguments, OutputArguments],
    )


def run(argv: Sequence[str]) -> None:
    """Trains, saves the adapter (or the model) and the tokenizer, and prints the last metrics."""
    data, training, model_arguments, output = make_parser().parse(argv)
    train_dataset = load_split(data.dataset_name, data.dataset_config, data.dataset_train_split)
    eval_dataset = None
    if training.eval_strategy != "no":
        eval_dataset = load_split(data.dataset_name, data.dataset_config, data.dataset_test_split)
    model, tokenizer = load_student(model_arguments)
    if data.drop_long_rows:
        drop = functools.partial(
            drop_long_rows,
            tokenizer=tokenizer,
            eos_token_id=special_token_id("eos_token_id", model, tokenizer),
            max_length=training.max_length,
        )
        train_dataset = drop(train_dataset, "train_dataset")
        eval_dataset = None if eval_dataset is None else drop(eval_dataset, "eval_dataset")

    trainer = CertaintyForcingTrainer(
        model=model,
        args=training,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        peft_config=get_peft_config(model_arguments),
    )
    trainer.train(resume_from_checkpoint=_resume_from(training.resume_from_checkpoint))
    trainer.save_model()
    if training.push_to_hub:
        is_on_hub = data.dataset_name != DEMO and not Path(data.dataset_name).exists()
        trainer.push_to_hub(dataset_name=data.dataset_name if is_on_hub else None)
    if trainer.is_world_process_zero():
        figures = last_metrics(trainer.state.log_history) | {"output_dir": training.output_dir}
        say_table(figures)
        write_json(figures, output.json)
    # Processes that end without it may abort.
    trainer.accelerator.end_training()


def load_student(arguments: ModelArguments) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Returns model and tokenizer. The trainer chooses the device.

    Raises:
        OSError: if there is no such model.
    """
    name = path_of(arguments.model_name_or_path)
    quantization = get_quantization_config(arguments)
    revision = {"revision": arguments.model_revision}
    with loading("model_name_or_path", name):
        tokenizer = AutoTokenizer.from_pretrained(name, **revision)
        model = AutoModelForMaskedLM.from_pretrained(
            name,
            dtype=arguments.dtype,
            attn_implementation=arguments.attn_implementation,
            **({} if quantization is None else {"quantization_config": quantization}),
            **revision,
        )
    return model, tokenizer


def drop_long_rows(
    dataset: datasets.Dataset, name: str, tokenizer: PreTrainedTokenizerBase, eos_token_id: int, max_length: int
) -> datasets.Dataset:
    """Returns the rows that have at most `max_length` tokens, and says how many others there were."""
    dataset = prepare_dataset(dataset, name, tokenizer, eos_token_id=eos_token_id)
    kept = dataset.filter(lambda row: len(row["prompt_ids"]) + len(row["completion_ids"]) <= max_length)
    note(f"Dropped {len(dataset) - len(kept)} of {len(dataset)} rows longer than max_length={max_length}.")
    return kept


def last_metrics(log_history: list[dict[str, float]]) -> dict[str, Any]:
    """Returns the last value of everything that was logged."""
    return {name: value for logs in log_history for name, value in logs.items()}


def _resume_from(value: str | None) -> str | bool | None:
    """As text, `true` means the last checkpoint of the output folder."""
    return {"true": True, "false": None}.get(str(value).lower(), value)
