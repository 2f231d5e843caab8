# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints to resume from: which is complete, and in what its run differs from this one."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import nn
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import sort_checkpoints
from transformers.utils import ADAPTER_CONFIG_NAME, logging

from ..hub.card import SUMMARY_NAME
from .student import adapter_folder


logger = logging.get_logger(__name__)


def last_complete_checkpoint(output_dir: str) -> str | None:
    """Returns the last complete checkpoint in a folder, or `None` if there is none.

    A process that is killed while it saves leaves a last checkpoint with missing or truncated files. The Trainer
    writes `trainer_state.json` after all others.
    """
    for checkpoint in reversed(sort_checkpoints(output_dir) if Path(output_dir).is_dir() else []):
        with suppress(OSError, ValueError, SafetensorError):
            json.loads(Path(checkpoint, TRAINER_STATE_NAME).read_text())
            for file in Path(checkpoint).glob("*.safetensors"):
                # Reads the header, and compares it with the size of the file.
                safe_open(file, framework="pt").__exit__(None, None, None)
            return checkpoint
    return None


def check_resumable(checkpoint: str, model: Any) -> None:
    """Raises a `ValueError` if a checkpoint has another adapter than the model, or if only one of them has one.

    Warns if it has no state of the optimizer to go on with.
    """
    name, adapters = adapter_folder(model), getattr(model, "peft_config", None) or {}
    path = Path(checkpoint, name, ADAPTER_CONFIG_NAME)
    if path.is_file() != bool(adapters):
        kinds = ("an adapter", "a whole model") if path.is_file() else ("no adapter", "an adapter")
        raise ValueError(
            f"{checkpoint!r} has {kinds[0]}, and this run trains {kinds[1]}. Resume it as it was trained."
        )
    if adapters:
        config = adapters.get(name or "default", next(iter(adapters.values())))
        before, now = map(_meaning_of_weights, (json.loads(path.read_text()), config.to_dict()))
        if changed := [f"{key} was {before[key]!r} and is {x!r}" for key, x in now.items() if before.get(key, x) != x]:
            raise ValueError(
                f"The adapter of {checkpoint!r} is not that of this run: {', '.join(changed)}. Its weights would mean "
                "something else. Resume with the same `peft_config`, or train anew."
            )
    if not any(any(Path(checkpoint).glob(pattern)) for pattern in ("optimizer*", "global_step*")):
        logger.warning(
            f"{checkpoint!r} has no state of the optimizer, as with `save_only_model=True`: its moments, the schedule "
            "of the learning rate and random numbers begin anew, so the run is not the one without a break."
        )


def _meaning_of_weights(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of an adapter without those of its file and its training, and sets as sorted lists."""
    others = {"auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "revision", "task_type"}
    others |= {"init_lora_weights", "lora_dropout"}
    settings = {name: value for name, value in config.items() if name not in others}
    return {name: sorted(x) if isinstance(x, list | set | tuple) else x for name, x in settings.items()}


def warn_of_changes(checkpoint: str, summary: dict[str, Any]) -> None:
    """Warns of settings in which the run of a checkpoint differs from this one, which has the `summary`."""
    path, mine = Path(checkpoint, SUMMARY_NAME), json.dumps(summary)
    summaries = map(json.loads, (path.read_text() if path.is_file() else mine, mine))
    names = ("architecture", "attention", "base_model", "num_sequences", "shift_logits")
    before, now = ({name: facts.get(name) for name in names} | facts["settings"] for facts in summaries)
    # Batches are compared by the Trainer, which finds their size anew with `auto_find_batch_size`.
    compared = (before | now).keys() - {"steps", "batch_size"}
    changed = sorted(name for name in compared if before.get(name) != now.get(name))
    if changed:
        values = ", ".join(f"{name} was {before.get(name)!r} and is {now.get(name)!r}" for name in changed)
        logger.warning(f"The run of {checkpoint!r} had other settings, and goes on with yours: {values}.")


def all_finite(model: nn.Module) -> bool:
    """Returns whether all trainable weights are finite. With sharded weights, each process checks its own shard."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    return all((weight.to_local() if hasattr(weight, "to_local") else weight).isfinite().all() for weight in weights)
