# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel env`: what to attach to a bug report, and how much memory a training would take."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import AutoConfig

from ..environment import describe_environment
from ..evaluation.benchmark import SHAPES
from ..training.memory import estimate_training_memory
from . import COMMANDS
from .arguments import CommandParser, OutputArguments
from .console import say, write_json
from .loading import loading


@dataclass
class EnvironmentArguments:
    estimate: str | None = field(
        default=None,
        metadata={
            "help": "Estimate the memory of training a LLaDA or Dream model with LoRA: "
            f"{', '.join(SHAPES)}, or a name on the Hub, or a folder.",
            "metavar": "MODEL",
        },
    )
    per_device_train_batch_size: int = field(default=1, metadata={"help": "Sequences on a device, for the estimate."})
    max_length: int = field(default=384, metadata={"help": "Tokens of a sequence, for the estimate."})
    block_length: int = field(default=32, metadata={"help": "Tokens that are scored in a sequence, for the estimate."})
    lora_r: int = field(default=32, metadata={"help": "Rank of the adapter, for the estimate."})


def run(argv: Sequence[str]) -> None:
    """Prints the environment, or an estimate."""
    arguments, output = CommandParser("env", COMMANDS["env"], [EnvironmentArguments, OutputArguments]).parse(argv)
    if arguments.estimate is not None:
        write_json({"rows": say_estimates(arguments.estimate, arguments)}, output.json)
        return
    environment = describe_environment()
    for name, value in environment.items():
        say(f"- {name}: {', '.join(value) or 'none' if isinstance(value, list) else value}")
    write_json(environment, output.json)


def say_estimates(model: str, arguments: EnvironmentArguments) -> list[dict[str, Any]]:
    """Prints a table of the memory with and without what saves it, and returns its rows, in GB."""
    if model in SHAPES:
        config = SHAPES[model]
    else:
        with loading("estimate", model):
            config = AutoConfig.from_pretrained(model)
    say("| Base weights | Activation checkpointing | Weights, GB | Adapter, GB | Activations, GB | Total, GB |")
    say("| --- | --- | ---: | ---: | ---: | ---: |")
    rows = []
    for load_in_4bit in (False, True):
        for checkpointing in (False, True):
            estimate = estimate_training_memory(
                config,
                batch_size=arguments.per_device_train_batch_size,
                max_length=arguments.max_length,
                block_length=arguments.block_length,
                lora_rank=arguments.lora_r,
                activation_checkpointing=checkpointing,
                load_in_4bit=load_in_4bit,
            )
            row = {
                "weights": "4-bit" if load_in_4bit else "bf16",
                "activation_checkpointing": checkpointing,
                **{f"{name}_gb": value / 1e9 for name, value in vars(estimate).items()},
                "total_gb": estimate.total / 1e9,
            }
            rows.append(row)
            numbers = [f"{row[name]:.1f}" for name in ("weights_gb", "adapter_gb", "activations_gb", "total_gb")]
            say(f"| {row['weights']} | {'on' if checkpointing else 'off'} | {' | '.join(numbers)} |")
    return rows
