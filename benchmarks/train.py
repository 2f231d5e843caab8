# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Time and memory of a training step (loss and backward pass, LoRA), on models of any shape with random weights.

    python benchmarks/train.py --against ../dParallel --output benchmarks/results/train_small_against_official.json

With `--against`, the loss function of a checkout of the official code runs on the same model and the same masked
batch. Its drawing of masks is replaced by ours, so that the two losses can be compared; they agree for one sequence
(the official code averages over the tokens of all sequences of a batch, ours first over those of each).
"""

import functools
import importlib.util
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from speed import measure_peak_memory, random_model, random_prompts, timed
from torch.profiler import ProfilerActivity, profile
from transformers import HfArgumentParser, Trainer

from hf_dparallel import CertaintyForcingConfig, CertaintyForcingTrainer
from hf_dparallel.environment import describe_environment
from hf_dparallel.reports import markdown_table, write_json


@dataclass
class TrainingSpeedArguments:
    """What is trained on what."""

    shape: str = field(default="small", metadata={"help": "Shape of the model, as in benchmarks/speed.py."})
    batch_size: int = field(default=2, metadata={"help": "Sequences of a batch; each gives two masked views."})
    max_length: int = field(default=384, metadata={"help": "Tokens of a sequence."})
    prompt_length: int = field(default=64, metadata={"help": "Tokens of its prompt."})
    block_length: int = field(default=32, metadata={"help": "Tokens of a block."})
    masking: str = field(default="semi_autoregressive", metadata={"help": "As in CertaintyForcingConfig."})
    lora_rank: int = field(default=32, metadata={"help": "Rank of the adapter."})
    dtype: str = field(default="float32", metadata={"help": "Of the weights."})
    device: str = field(default="cpu", metadata={"help": "cpu or cuda."})
    repeats: int = field(default=3, metadata={"help": "Steps that are timed; their median counts."})
    against: str | None = field(default=None, metadata={"help": "A checkout of the official dParallel repository."})
    output: str | None = field(default=None, metadata={"help": "JSON file for the figures."})


class Step:
    """A model with an adapter, a masked batch, and the loss functions to run on them."""

    def __init__(self, arguments: TrainingSpeedArguments, output_dir: str):
        model = random_model(arguments.shape, getattr(torch, arguments.dtype), arguments.device)
        if model.attention != "full":
            model.config.block_length = arguments.block_length
        tokens = random_prompts(model, arguments.batch_size, arguments.max_length).tolist()
        rows = [
            {"prompt_ids": ids[: arguments.prompt_length], "completion_ids": ids[arguments.prompt_length :]}
            for ids in tokens
        ]
        self.trainer = CertaintyForcingTrainer(
            model,
            CertaintyForcingConfig(
                output_dir,
                block_length=arguments.block_length,
                max_length=arguments.max_length,
                masking=arguments.masking,
                activation_checkpointing=False,
                use_cpu=arguments.device == "cpu",
            ),
            train_dataset=rows,
            peft_config=LoraConfig(r=arguments.lora_rank, lora_alpha=arguments.lora_rank),
        )
        self.model = self.trainer.model.train()
        self.batch = {name: tensor.to(model.device) for name, tensor in self.trainer.data_collator(rows).items()}
        self.clean = torch.tensor(tokens, device=model.device)
        self.mask_token_id = model.config.mask_token_id

    def ours(self) -> torch.Tensor:
        """Computes the trainer's loss."""
        return self.trainer.compute_loss(self.model, self.batch)

    def official(self, checkout: str) -> Callable[[], torch.Tensor]:
        """Returns the official trainer's `compute_loss`, given our masks."""
        module = load_official_training(checkout)
        views = [self.batch[name].chunk(2) for name in ("input_ids", "labels")]
        masked = [labels != -100 for labels in views[1]]
        module.forward_process_semi_ar = lambda *args, **kwargs: (*views[0], *masked)
        # Made without the Trainer's `__init__`, which `compute_loss` needs nothing of.
        trainer = module.DLMTrainer.__new__(module.DLMTrainer)
        trainer.temperature, trainer.entropy_weight, trainer.block_size = 0.5, 2, 32
        trainer.mask_token_id = self.mask_token_id
        return lambda: trainer.compute_loss(self.model, {"input_ids": self.clean, "prompt_lengths": None})


def load_official_training(checkout: str) -> types.ModuleType:
    """Imports the official training script, which imports DeepSpeed without needing it for the loss."""
    sys.modules.setdefault("deepspeed", types.ModuleType("deepspeed"))
    spec = importlib.util.spec_from_file_location("official_training", Path(checkout, "LLaDA", "llada_train.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not issubclass(module.DLMTrainer, Trainer):
        raise TypeError(f"{checkout} is not a checkout of the official dParallel repository.")
    return module


def measure(step: Step, loss_function: Callable[[], torch.Tensor], device: str, repeats: int):
    """Measures median time (of all cores together), additional peak memory, and the loss of a step."""

    def run() -> float:
        loss = loss_function()
        loss.backward()
        step.model.zero_grad()
        return loss.item()

    # Once before the memory is measured: a one-time allocation is not the step's.
    loss = run()
    # Other programs on the machine should not count.
    clock = time.perf_counter if device == "cuda" else time.process_time
    return {
        "tensors_mb": measure_tensor_memory(run, device),
        "process_mb": measure_peak_memory(run, device),
        "seconds": statistics.median(timed(run, device, clock) for _ in range(repeats)),
        "weights_mb": step.model.get_memory_footprint() / 2**20,
        "loss": loss,
    }


def measure_tensor_memory(function: Callable[[], Any], device: str) -> float | None:
    """Megabytes of tensors that a call needs at most, beyond those before it.

    On a CPU the process takes more than that ([`measure_peak_memory`]), by what its allocator has not given back.
    """
    if device == "cuda":
        return measure_peak_memory(function, device)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        function()
    events = [event for event in prof.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak / 2**20


def measurements(arguments: TrainingSpeedArguments, folder: str) -> Iterator[tuple[dict[str, Any], Callable]]:
    """Yields what is measured and its function: each loss, without and with activation checkpointing."""
    step = Step(arguments, folder)
    losses = {} if arguments.against is None else {"official": step.official(arguments.against)}
    losses |= {"ours": step.ours}
    for checkpointing in (False, True):
        if checkpointing:
            step.model.activation_checkpointing_enable({"use_reentrant": False})
            step.model.enable_input_require_grads()
        for name, loss_function in losses.items():
            run = functools.partial(measure, step, loss_function, arguments.device, arguments.repeats)
            yield {"code": name, "activation_checkpointing": checkpointing}, run


def main() -> None:
    (arguments,) = HfArgumentParser(TrainingSpeedArguments).parse_args_into_dataclasses()
    with tempfile.TemporaryDirectory() as folder:
        rows = [of | run() for of, run in measurements(arguments, folder)]
    columns = {"code": "", "activation_checkpointing": "", "seconds": ".2f", "tensors_mb": ".0f", "process_mb": ".0f"}
    columns |= {"loss": ".4f"}
    lines = [[format(row[name], form) for name, form in columns.items()] for row in rows]
    print(markdown_table(list(columns), lines, num_text_columns=2))
    if arguments.output is not None:
        result = {
            "rows": rows,
            "settings": vars(arguments),
            "num_threads": torch.get_num_threads(),
            "environment": describe_environment(),
        }
        write_json(result, arguments.output)


if __name__ == "__main__":
    main()
