# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel fit`: whether a model fits into the memory, before it is downloaded."""

from contextlib import suppress
from itertools import accumulate
from operator import or_
from types import SimpleNamespace
from typing import Any

import click
import psutil
import torch
from accelerate.utils import convert_file_size_to_int
from transformers import AutoConfig, PreTrainedConfig

from hf_dparallel_cli import COMMANDS
from hf_dparallel_cli.command import Flags

from ..demo import path_of
from ..reports import write_json
from .console import note, say, say_table
from .loading import checked_name, choose_device, read_settings, resolve_settings
from .memory import estimate_memory, make_skeleton


def run(flags: Flags) -> dict[str, Any]:
    """Prints what takes how much memory, and the verdict. It is an error if the model does not fit."""
    figures = judge(flags)
    say_table({name: gigabytes(num_bytes) for name, num_bytes in figures["parts"].items()})
    if not figures["fits"]:
        if flags.json is not None:
            write_json(figures, flags.json)
        raise ValueError(figures["verdict"])
    say(figures["verdict"])
    return figures


def note_fit(*sources: Any, **given: Any) -> None:
    """Notes the verdict on what a command is about to do: the flags of `fit` are `given`, or attributes of `sources`.

    There is none for a model that cannot be loaded, which the command says by itself, or is of another library.
    """
    command = COMMANDS["fit"]
    found = {name: getattr(source, name) for source in sources for name in command.flags if hasattr(source, name)}
    values = {name: value for name, value in (found | given).items() if value is not None}
    with suppress(ValueError, OSError, click.UsageError):
        context = command.make_context("fit", [], default_map=command.texts(values, "the command"))
        note(judge(context.obj)["verdict"])


def judge(flags: Flags) -> dict[str, Any]:
    """Returns the bytes needed and available, whether it fits and, if not, the changed flags that make it fit.

    Raises:
        ValueError: for a model of another library.
    """
    name = path_of(flags.model)
    with checked_name("model", name):
        config = AutoConfig.from_pretrained(name, revision=flags.revision or "main", trust_remote_code=False)
        skeleton = make_skeleton(config, flags.dtype)
    noise = getattr(skeleton, "noise", None)
    if noise is None or (flags.train and noise == "uniform"):
        text = f"The memory {'for training' if noise else 'of'} `model={flags.model}` is not known."
        raise ValueError(f"{text} It is for what `hf-dparallel models` lists; of DiffusionGemma, leave `train` out.")
    work = SimpleNamespace(**vars(flags), length=flags.max_length, computed=flags.max_length, is_cached=False)
    work.dtype = str(skeleton.dtype).removeprefix("torch.")
    if flags.train:
        work.block_length = flags.settings.get("block_length", 32)
    else:
        # The mask token may be the tokenizer's, which is not read.
        tokens: Any = SimpleNamespace(mask_token_id=0)
        settings = resolve_settings(skeleton, read_settings(flags), tokens)
        work.block_length, cache = settings.block_length, settings.cache_implementation
        work.length, work.is_cached = flags.prompt_length + settings.max_new_tokens, cache is not None
        # With the exact cache, the first pass computes only the prompt.
        work.computed = flags.prompt_length + work.block_length if cache == "block" else work.length
    memory, parts = available_memory(flags), estimate_memory(config, work)
    total = sum(parts.values())
    figures = {"parts": parts, "total": total, "memory": memory, "fits": total <= memory, "would_fit": {}}
    verdict = f"Memory: {gigabytes(total)} of {gigabytes(memory)}"
    if figures["fits"]:
        return figures | {"verdict": f"{verdict}, which fits."}
    change, smaller = _smaller(config, work, memory)
    added = [f"--{flag}{'' if value is True else f' {value}'}" for flag, value in change.items()]
    remedy = f"Add {' '.join(added)}: {gigabytes(smaller)}" if change else "No setting makes it fit"
    return figures | {"would_fit": change, "verdict": f"{verdict}, which does not fit. {remedy}."}


def available_memory(flags: Flags) -> int:
    """Returns the bytes given, or those free on the device, or else on this machine."""
    if flags.memory is not None:
        try:
            return convert_file_size_to_int(flags.memory.upper())
        except ValueError as error:
            raise click.UsageError(f"`memory` must be in MB or GB, such as 24GB, got {flags.memory!r}.") from error
    device = choose_device(flags.device)
    if device.type in ("cpu", "mps"):
        return psutil.virtual_memory().available
    return torch.accelerator.get_memory_info(device)[0]


def gigabytes(num_bytes: int) -> str:
    """Returns a number of bytes in units of 10^9, or of 10^6 if they are few."""
    return f"{num_bytes / 1e6:.1f} MB" if 0 < num_bytes < 1e8 else f"{num_bytes / 1e9:.1f} GB"


def _smaller(config: PreTrainedConfig, work: Flags, memory: int) -> tuple[dict[str, Any], int]:
    """Returns the flags to change, one if that is enough, otherwise more and more together, and the bytes then."""
    batch_size = "per_device_train_batch_size" if work.train else "batch_size"
    rows = getattr(work, batch_size)
    changes: list[dict[str, Any]] = [
        {"dtype": "bfloat16", "bf16": True},
        {"activation_checkpointing": True},
        *({batch_size: rows >> shift} for shift in range(1, rows.bit_length())),
        {"use_peft": True},
        {"use_peft": True, "load_in_4bit": True},
    ]
    for change in [*changes, *accumulate(changes, or_)]:
        total = sum(estimate_memory(config, SimpleNamespace(**vars(work) | change)).values())
        if total <= memory:
            return {name: value for name, value in change.items() if getattr(work, name) != value}, total
    return {}, 0
