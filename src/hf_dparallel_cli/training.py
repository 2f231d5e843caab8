# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Runs `hf-dparallel train`, whose options are the fields of dataclasses."""

from argparse import SUPPRESS
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from shlex import quote
from typing import Any, NoReturn

import click
import yaml
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import ADAPTER_CONFIG_NAME, CONFIG_NAME
from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config

from hf_dparallel.data.prompts import has_texts
from hf_dparallel.demo import path_of
from hf_dparallel.environment import require
from hf_dparallel.experimental.autoregressive_loss import AutoregressiveLossConfig
from hf_dparallel.generation.adapters import has_adapter
from hf_dparallel.hub.card import SUMMARY_NAME
from hf_dparallel.training.checkpoints import last_complete_checkpoint
from hf_dparallel.training.config import CertaintyForcingConfig
from hf_dparallel.training.trainer import CertaintyForcingTrainer
from hf_dparallel_rules.settings import suggest

from .loading import DEMO, load_base, load_split
from .options import OUTPUT_FOLDER


@dataclass
class StudentArguments(ModelConfig):
    model_name_or_path: str = field(
        metadata={
            "help": "The student, a copy of the teacher: its name on the Hub, a folder, or 'demo'.",
            "aliases": ["--model"],
        }
    )
    causal_past: bool = field(
        default=False, metadata={"help": "Read a Llama, Mistral or Qwen, to train an adapter for exact decoding."}
    )
    # TRL's default is for causal models.
    lora_task_type: str | None = field(default=None, metadata={"help": "Leave it out: PEFT has none for our models."})


@dataclass
class DataArguments:
    dataset_name: str = field(
        metadata={
            "help": "Trajectories: the folder of `hf-dparallel trajectories`, or another dataset, folder or "
            "file with columns 'prompt_ids' and 'completion_ids', or 'prompt' and 'completion', or 'messages'.",
            "aliases": ["--dataset"],
        }
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration (subset) of the dataset."})
    dataset_train_split: str = field(default="train", metadata={"help": "Split to train on."})
    dataset_test_split: str = field(default="test", metadata={"help": "Split to evaluate on, with --eval_strategy."})


ARGUMENTS = (DataArguments, AutoregressiveLossConfig, StudentArguments)


class Parser(TrlParser):
    """Parses options and `--config` as TRL's commands do. Wrong usage is a `click.UsageError`."""

    def __init__(self):
        super().__init__(
            ARGUMENTS,
            prog="hf-dparallel train",
            usage="hf-dparallel train MODEL [--config FILE] [options]",
            description="Certainty-forcing distillation on trajectories. --config FILE is a YAML file with any of "
            "these options by their long names. All other fields of `transformers.TrainingArguments` and "
            "`trl.ModelConfig` are options, too. --resume_from_checkpoint true continues from the last "
            "checkpoint in --output_dir.",
            epilog="Example: hf-dparallel train demo --dataset_name runs/data --use_peft --output_dir runs/student",
            allow_abbrev=False,
        )
        ours = {name for kind in (*ARGUMENTS, CertaintyForcingConfig) for name in kind.__annotations__}
        for action in self._actions:
            if action.dest not in ours:
                action.help = SUPPRESS

    def error(self, message: str) -> NoReturn:
        raise click.UsageError(message)


def read_arguments(words: Sequence[str]) -> tuple[DataArguments, CertaintyForcingConfig, StudentArguments]:
    """Returns the settings of data, training and student from words of a command line, MODEL first or by name."""
    if words and not words[0].startswith("-"):
        words = ["--model_name_or_path", *words]
    try:
        *arguments, unknown = Parser().parse_args_and_config(words, return_remaining_strings=True)
    except IndexError as error:
        raise click.UsageError("Option '--config' requires an argument.") from error
    except (OSError, yaml.YAMLError, ValueError) as error:
        raise click.UsageError(str(error)) from error

    if unknown:
        names = [each.name for kind in ARGUMENTS for each in fields(kind)]
        meant = suggest(unknown[0].lstrip("-").replace("-", "_"), names)
        raise click.UsageError(f"No such option {unknown[0]!r}. {meant}")

    data, training, student = arguments
    return data, training, student


def train(data: DataArguments, training: CertaintyForcingConfig, student: StudentArguments) -> None:
    """Trains, saves the adapter (or the model) and the tokenizer, and prints the last metrics."""
    # As text, `true` means the last checkpoint of the output folder.
    resumed: Any = training.resume_from_checkpoint
    resumed = {"true": True, "false": None}.get(str(resumed).lower(), resumed)

    output_dir = OUTPUT_FOLDER.convert(training.output_dir, None, None)
    names = (SUMMARY_NAME, CONFIG_NAME, ADAPTER_CONFIG_NAME)
    has_model = any(Path(output_dir, name).is_file() for name in names)
    if not resumed and (has_model or last_complete_checkpoint(output_dir)):
        raise ValueError(
            f"`output_dir={output_dir}` holds {'a model' if has_model else 'checkpoints'} already. Choose another "
            "folder, or delete this one. To continue its training, add --resume_from_checkpoint true."
        )

    splits = {"train_dataset": load_split(data.dataset_name, data.dataset_config, data.dataset_train_split)}
    if training.eval_strategy != "no":
        splits["eval_dataset"] = load_split(data.dataset_name, data.dataset_config, data.dataset_test_split)

    model, tokenizer = load_student(student)
    trainer = CertaintyForcingTrainer(
        model=model, args=training, processing_class=tokenizer, peft_config=get_peft_config(student), **splits
    )
    trainer.train(resume_from_checkpoint=resumed)
    trainer.save_model()
    if training.push_to_hub:
        dataset_name: str | None = data.dataset_name
        if data.dataset_name == DEMO or Path(data.dataset_name).exists():
            dataset_name = None  # it is not on the Hub
        trainer.push_to_hub(dataset_name=dataset_name)

    # Processes that end without it may abort. What wraps the model goes first: were it the last to hold the group of
    # processes, it would wait for the group's threads, which wait for the interpreter.
    trainer.model_wrapped = trainer.model
    trainer.accelerator.free_memory()
    trainer.accelerator.end_training()
    if not trainer.is_world_process_zero():
        return

    figures: dict[str, Any] = {}
    for logs in trainer.state.log_history:
        # The last value of everything that was logged.
        figures |= logs
    for name, value in figures.items():
        if not name.endswith(("_flos", "_per_second")):
            click.echo(f"{name}  {value:.4g}")

    folder = quote(training.output_dir)
    following = f"chat {folder}"
    if tokenizer.chat_template is None or has_texts(splits["train_dataset"]):
        following = f"generate {folder} --raw TEXT"
    click.echo(f"\nNext: hf-dparallel {following}")


def load_student(arguments: StudentArguments) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Returns model and tokenizer. The trainer chooses the device."""
    quantization = get_quantization_config(arguments)
    if quantization is not None:
        require("load_in_4bit", "bitsandbytes")
    model, tokenizer = load_base(
        path_of(arguments.model_name_or_path),
        arguments.causal_past,
        arguments.model_revision or "main",
        dtype=arguments.dtype,
        attn_implementation=arguments.attn_implementation,
        quantization_config=quantization,
    )
    if has_adapter(model):
        raise ValueError(f"`model={arguments.model_name_or_path}` is an adapter already. Give its base model.")
    return model, tokenizer
